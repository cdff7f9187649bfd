"""Handle the replicas of tf.distribute, their parts of variables, and the exchange between them."""

import contextlib

from legacyga.backend import features, graph
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_sparse, is_variable, parts_of


def replica_local_variables(tf, aggregation="SUM"):
    """Return a context whose variables have a copy on each replica. A checkpoint saves the copies' `aggregation`."""
    return _variables_with(tf, "ON_READ", aggregation)


def counter_variables(tf):
    """Return a context that creates counters. All replicas write the same value, which TF up to 2.3 must be told."""
    return _variables_with(tf, "AUTO", "ONLY_FIRST_REPLICA")


@contextlib.contextmanager
def _variables_with(tf, synchronization, aggregation):
    if not features.has_variable_creators(tf):
        yield
        return

    def make(next_creator, **kwargs):
        kwargs.update(synchronization=getattr(tf.VariableSynchronization, synchronization))
        kwargs.update(aggregation=features.variable_aggregation(tf, aggregation))
        return next_creator(**kwargs)

    with features.variable_creator_scope(tf)(make):
        yield


class Replicas(object):
    """All replicas, in this process and on other workers. A TensorFlow without tf.distribute has one."""

    def __init__(self, tf):
        self._tf = tf
        self._distribute = features.distribute(tf)
        self._init_scope, self._getter = features.init_scope(tf), features.getter_of_part(tf)

    @property
    def strategy(self):
        """The current strategy, possibly TensorFlow's default one; None without tf.distribute."""
        return self._distribute and self._distribute.get_strategy()

    @property
    def entered_strategy(self):
        """The strategy whose scope is entered here, None outside of every scope."""
        return self.strategy if self._distribute and self._distribute.has_strategy() else None

    @property
    def count(self):
        """The number of replicas, here and on other workers."""
        return self.strategy.num_replicas_in_sync if self._distribute else 1

    @property
    def are_several(self):
        return self.count > 1

    @property
    def synchronize(self):
        """Whether an optimizer's update synchronizes replicas. Under MirroredStrategy it does even for one replica."""
        strategy = self.entered_strategy
        return strategy is not None and not isinstance(strategy, self._distribute.OneDeviceStrategy)

    @property
    def are_elsewhere(self):
        """Whether there are replicas in other processes."""
        strategy = self.strategy
        return self.are_several and self.count > len(strategy.extended.worker_devices)

    @property
    def is_replica_here(self):
        """Whether code here can apply gradients: everywhere except in a strategy's cross-replica context."""
        return self._distribute is None or self._distribute.get_replica_context() is not None

    @property
    def number(self):
        """This replica's number as an int, None outside of every replica."""
        if self.entered_strategy is None or not self.is_replica_here:
            return None
        number = self._distribute.get_replica_context().replica_id_in_sync_group
        return number if isinstance(number, int) else int(graph.constant_value(self._tf, number))

    @contextlib.contextmanager
    def making(self, strategy, aggregation):
        """Return a context to create variables outside of every function, with a copy on each replica of `strategy`."""
        with self._init_scope(), contextlib.ExitStack() as stack:
            # init_scope exits the strategy that the function is in: enter it again.
            if strategy is not None and self.entered_strategy is None:
                stack.enter_context(strategy.scope())
            stack.enter_context(replica_local_variables(self._tf, aggregation))
            yield

    def colocated_with(self, variable):
        """Return a context that creates variables on the devices of `variable`; for None, anywhere."""
        if variable is None:
            return contextlib.ExitStack()
        variable = variable if is_variable(variable) else variable.value
        return self.strategy.extended.colocate_vars_with(variable)

    def scope_of(self, variable):
        """Return the scope of the strategy that made a variable, for callers outside of every scope."""
        strategy = features.strategy_of(variable)
        outside = strategy is not None and self.entered_strategy is None
        return strategy.scope() if outside else contextlib.ExitStack()

    def local(self, variable):
        """In replica context, return this replica's part of a variable, for operations that accept nothing else."""
        get = getattr(variable, self._getter, None)
        return variable if get is None else get()

    def on_all(self, function, args):
        """Call `function(run, *args)` in cross-replica context; `run(step, args)` calls `step` on every replica."""
        if self._distribute is None:
            return function(lambda each, args: each(*args), *args)

        def across(strategy, *args):
            return function(strategy.extended.call_for_each_replica, *args)

        replica = self._distribute.get_replica_context()
        return across(self.strategy, *args) if replica is None else replica.merge_call(across, args)

    def sum(self, value):
        """In cross-replica context, sum a tensor over all replicas, whether each has a value or all share one."""
        parts = parts_of(value)
        if not self.are_several:
            return parts[0]
        strategy = self.strategy
        count_here = len(strategy.extended.worker_devices)
        if not self.are_elsewhere:
            return sum(parts[1:], parts[0]) if len(parts) > 1 else parts[0] * count_here
        if count_here > 1 and len(parts) == 1:
            # `reduce` refuses to sum one value that several replicas share.
            value = strategy.extended.call_for_each_replica(self._tf.identity, (value,))
        return strategy.reduce(self._distribute.ReduceOp.SUM, value, axis=None)

    def mean(self, value):
        """In replica context, return the mean of the replicas' scalars."""
        if not self.are_several:
            return value
        return self._distribute.get_replica_context().all_reduce(self._distribute.ReduceOp.MEAN, value)

    def exchanged(self, gradients, variables):
        """In replica context, sum gradients (None stays None) over all replicas: all get equal bits, each row once."""
        at = [i for i, gradient in enumerate(gradients) if gradient is not None]
        variables = [variables[i] if is_variable(variables[i]) else variables[i].value for i in at]
        args = ([gradients[i] for i in at], variables)
        result = list(gradients)
        for i, each in zip(at, self._distribute.get_replica_context().merge_call(self._exchange, args)):
            result[i] = each
        return result

    def _exchange(self, strategy, gradients, variables):
        # A collective in a loop needs equally many rows in each iteration, so sum rows here if all replicas are here.
        is_local = [is_sparse(parts_of(each)[0]) and not self.are_elsewhere for each in gradients]
        others = [(each, var) for each, var, local in zip(gradients, variables, is_local) if not local]
        reduced = strategy.extended.batch_reduce_to(self._distribute.ReduceOp.SUM, others) if others else []
        reduced = iter(reduced)
        return [
            self.sum_of_rows(parts_of(each)) if local else self._with_rows_once(strategy, next(reduced))
            for each, local in zip(gradients, is_local)
        ]

    def _with_rows_once(self, strategy, gradient):
        if not is_sparse(parts_of(gradient)[0]):
            return gradient
        return strategy.extended.call_for_each_replica(lambda each: self.sum_of_rows([each]), (gradient,))

    def sum_of_rows(self, parts):
        """Sum IndexedSlices into one that has each row once."""
        tf = self._tf
        rows, places = tf.unique(tf.concat([each.indices for each in parts], 0))
        values = tf.concat([each.values for each in parts], 0)
        values = tf.math.unsorted_segment_sum(values, places, tf.shape(rows)[0])
        return tf.IndexedSlices(values, rows, parts[0].dense_shape)

    def check_is_each_replicas(self, variable):
        """Raise if all replicas share this variable, because each needs its own."""
        if self.are_several and len(parts_of(variable)) != len(self.strategy.extended.worker_devices):
            raise ValueError(
                "Each replica accumulates gradients in variables of its own, and this strategy has one for all of its "
                "replicas. Received: {}. Use tf.distribute.MirroredStrategy, and build the optimizer in its "
                "scope.".format(shown(self.strategy))
            )

    def check_workers_wait(self):
        """Raise under ParameterServerStrategy, except in graph mode, where a lock on the server makes workers wait."""
        strategy = self.entered_strategy
        if strategy is None:
            return
        # TF 1.13 has no `experimental`. Delete with TF 1.13.
        kind = getattr(getattr(self._distribute, "experimental", None), "ParameterServerStrategy", ())
        if isinstance(strategy, kind) and features.executing_eagerly_outside_functions(self._tf)():
            raise ValueError(
                "The workers of a ParameterServerStrategy do not wait for each other. They would count one window at "
                "the same time, and lose mini-steps. Received: {}. Use tf.distribute.MultiWorkerMirroredStrategy, or "
                "gradient_accumulation_steps=1.".format(shown(strategy))
            )
