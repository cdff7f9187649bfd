"""What tf.distribute has several of: replicas, their parts of variables, and the exchange between them."""

import contextlib

from legacyga.backend import graph


def replica_local_variables(tf, aggregation="SUM"):
    """A context: variables made in it have a copy on each replica, where there is a strategy with replicas.

    The aggregation is what a checkpoint holds of the copies, `"SUM"`, `"MEAN"` or `"ONLY_FIRST_REPLICA"`.
    """
    return _variables_with(tf, "ON_READ", aggregation)


def counted_variables(tf):
    """A context: all replicas may write the same to a variable made in it. Up to TF 2.3 they must say so."""
    return _variables_with(tf, "AUTO", "ONLY_FIRST_REPLICA")


@contextlib.contextmanager
def _variables_with(tf, synchronization, aggregation):
    if not graph.lifts_variables(tf):
        yield
        return

    # Replicas are towers in TF 1.11 and 1.12; deletable with 1.12.
    names = tf.VariableAggregation.__members__
    known = aggregation if aggregation in names else aggregation.replace("REPLICA", "TOWER")

    def make(next_creator, **kwargs):
        kwargs.update(synchronization=getattr(tf.VariableSynchronization, synchronization))
        kwargs.update(aggregation=names[known])
        return next_creator(**kwargs)

    with graph.variable_creator_scope(tf)(make):
        yield


class Replicas(object):
    """The part of `ops.Ops` that knows of replicas. Where TensorFlow knows of none there is one."""

    @property
    def strategy(self):
        """The strategy here and now; None up to TF 1.13, which has none to ask for."""
        distribute = getattr(self.tf, "distribute", None)
        return distribute.get_strategy() if hasattr(distribute, "get_strategy") else None

    @property
    def entered_strategy(self):
        """The strategy in whose scope this is, None outside of all."""
        distribute = getattr(self.tf, "distribute", None)
        return self.strategy if hasattr(distribute, "has_strategy") and distribute.has_strategy() else None

    @contextlib.contextmanager
    def making_for_replicas(self, strategy, aggregation):
        """A context to make variables in, outside of every function, with a copy on each replica of a strategy or None.

        The aggregation is that of `replica_local_variables`.
        """
        with self.init_scope(), contextlib.ExitStack() as stack:
            # Outside of its function a strategy need not be the current one.
            if strategy is not None and self.entered_strategy is None:
                stack.enter_context(strategy.scope())
            stack.enter_context(replica_local_variables(self.tf, aggregation))
            yield

    @property
    def has_replicas(self):
        """Whether there are more replicas than one, here and on other workers."""
        return self.strategy is not None and self.strategy.num_replicas_in_sync > 1

    def sum_over_replicas(self, value):
        """In cross-replica context, the sum of a tensor of each replica, or of one for all of them.

        Those of other workers are included.
        """
        if not self.has_replicas:
            return self._parts(value)[0]
        strategy, parts = self.strategy, self._parts(value)
        here = len(strategy.extended.worker_devices)
        if not self.has_other_workers:
            return sum(parts[1:], parts[0]) if len(parts) > 1 else parts[0] * here
        if here > 1 and len(parts) == 1:
            value = strategy.extended.call_for_each_replica(self.identity, (value,))
        return strategy.reduce(self.tf.distribute.ReduceOp.SUM, value, axis=None)

    @property
    def replicas(self):
        """How many there are, here and on other workers."""
        return self.strategy.num_replicas_in_sync if self.has_replicas else 1

    def sum_of_scalars(self, value):
        """In cross-replica context, the float64 sum of a scalar as in `sum_over_replicas`."""
        return self.cast(self.sum_over_replicas(value), "float64")

    def mean_in_replica(self, value):
        """In replica context, the mean over all replicas of a scalar that each has."""
        if not self.has_replicas:
            return value
        return self.tf.distribute.get_replica_context().all_reduce(self.tf.distribute.ReduceOp.MEAN, value)

    def exchanged(self, gradients, variables):
        """In replica context, the sums over all replicas of gradients, in one exchange.

        Args:
            gradients: list of tensors, IndexedSlices with each row once, or None.
            variables: theirs.

        Returns:
            A list of the same form, the same on all replicas to the bit: rows that several replicas have stand there
            once.
        """
        at = [i for i, gradient in enumerate(gradients) if gradient is not None]
        variables = [variables[i] if self.is_variable(variables[i]) else variables[i].value for i in at]
        args = ([gradients[i] for i in at], variables)
        result = list(gradients)
        for i, each in zip(at, self.tf.distribute.get_replica_context().merge_call(self._exchange, args)):
            result[i] = each
        return result

    def _exchange(self, strategy, gradients, variables):
        is_local = [self._is_rows_of_local_replicas(each) for each in gradients]
        others = [(each, var) for each, var, local in zip(gradients, variables, is_local) if not local]
        reduced = strategy.extended.batch_reduce_to(self.tf.distribute.ReduceOp.SUM, others) if others else []
        reduced = iter(reduced)
        return [
            self.sum_of_rows(self._parts(each)) if local else self._with_rows_once(strategy, next(reduced))
            for each, local in zip(gradients, is_local)
        ]

    def _is_rows_of_local_replicas(self, gradient):
        # The collectives of TF 2.11 and newer want as many rows each time that a loop runs them.
        parts = self._parts(gradient)
        return self.is_sparse(parts[0]) and not self.has_other_workers

    def _with_rows_once(self, strategy, gradient):
        if not self.is_sparse(self._parts(gradient)[0]):
            return gradient
        return strategy.extended.call_for_each_replica(lambda each: self.sum_of_rows([each]), (gradient,))

    def sum_of_rows(self, parts):
        """IndexedSlices with the rows of several IndexedSlices, each row once."""
        indices = self.tf.concat([each.indices for each in parts], 0)
        rows, places = self.tf.unique(indices)
        values = self.tf.concat([each.values for each in parts], 0)
        values = self.tf.math.unsorted_segment_sum(values, places, self.tf.shape(rows)[0])
        return self.tf.IndexedSlices(values, rows, parts[0].dense_shape)

    def check_is_each_replicas(self, variable):
        """Raise where a variable that each replica is to have for itself is one for all of them."""
        if not self.has_replicas:
            return
        strategy = self.strategy
        if len(self._parts(variable)) != len(strategy.extended.worker_devices):
            raise ValueError(
                "Each replica accumulates gradients in variables of its own, and this strategy has one for all of its "
                "replicas. Received: {!r}. Use tf.distribute.MirroredStrategy.".format(strategy)
            )

    def check_workers_wait(self):
        """Raise under the parameter servers of TF 2: their workers would all count one window, and none waits."""
        distribute = getattr(self.tf, "distribute", None)
        kind = getattr(getattr(distribute, "experimental", None), "ParameterServerStrategy", ())
        # In graph mode a lock on the server has the workers take turns. TF 1.15 and 2.0 lack the function.
        is_eager = getattr(self.v1, "executing_eagerly_outside_functions", self.tf.executing_eagerly)
        if isinstance(self.strategy, kind) and is_eager():
            raise ValueError(
                "The workers of a ParameterServerStrategy do not wait for each other. They would count one window at "
                "the same time, and lose mini-steps. Received: {!r}. Use tf.distribute.MultiWorkerMirroredStrategy, or "
                "gradient_accumulation_steps=1.".format(self.strategy)
            )

    @property
    def has_other_workers(self):
        """Whether there are replicas in other processes."""
        return self.has_replicas and self.strategy.num_replicas_in_sync > len(self.strategy.extended.worker_devices)

    @staticmethod
    def _parts(value):
        """The parts of a value that this process has: one a replica."""
        values = getattr(value, "values", None)
        return values if isinstance(values, tuple) else (value,)

    def local(self, variable):
        """In replica context, this replica's part of a variable, for the operations that ask for no less."""
        # `get` of TF 2.0 and 2.1 is `_get` from 2.2 on.
        get = getattr(variable, "_get", None) or getattr(variable, "get", None)
        return variable if get is None else get()

    def on_all_replicas(self, function, args):
        """`function(run, *args)` in cross-replica context, where `run(each, args)` calls `each` on every replica."""
        if not hasattr(getattr(self.tf, "distribute", None), "get_replica_context"):
            # TF 1.8 to 1.12: one replica.
            return function(lambda each, args: each(*args), *args)

        def across(strategy, *args):
            return function(strategy.extended.call_for_each_replica, *args)

        replica = self.tf.distribute.get_replica_context()
        return across(self.tf.distribute.get_strategy(), *args) if replica is None else replica.merge_call(across, args)

    def colocated_with(self, variable):
        """A context to make a variable in where another is; None for anywhere."""
        if variable is None:
            return contextlib.ExitStack()
        variable = variable if self.is_variable(variable) else variable.value
        return self.tf.distribute.get_strategy().extended.colocate_vars_with(variable)

    def strategy_scope(self, variable):
        """The scope of the strategy that a variable was made under, for those who are in none."""
        # `distribute_strategy` of TF 2.0 is `_distribute_strategy`.
        strategy = getattr(variable, "distribute_strategy", None) or getattr(variable, "_distribute_strategy", None)
        outside = strategy is not None and not self.tf.distribute.has_strategy()
        return strategy.scope() if outside else contextlib.ExitStack()

    def replica_number(self):
        """Which of the replicas this is, an int; None outside of all."""
        distribute = getattr(self.tf, "distribute", None)
        if not (hasattr(distribute, "has_strategy") and distribute.has_strategy() and self.in_replica_context()):
            return None
        number = distribute.get_replica_context().replica_id_in_sync_group
        return number if isinstance(number, int) else int(graph.constant_value(self.tf, number))

    def in_replica_context(self):
        """Whether gradients can be applied here: everywhere but in the cross-replica context of a strategy."""
        distribute = getattr(self.tf, "distribute", None)
        return not hasattr(distribute, "get_replica_context") or distribute.get_replica_context() is not None
