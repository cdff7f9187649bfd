"""The windows of an optimizer, in each graph that it trains in."""

from legacyga.optimizers.registry import Registry


class Windows(object):
    """The `Registry` of each TensorFlow 1 graph, and of what is outside of all graphs.

    An Estimator takes one optimizer of tf.compat.v1.train through many graphs.

    Args:
        accumulation: the optimizer's `Accumulation`.
    """

    def __init__(self, accumulation):
        self._owner = accumulation
        self._registries = {}

    def shared_with(self, accumulation):
        """The same windows, of another optimizer."""
        shared = Windows(accumulation)
        shared._registries = {graph: each.shared_with(accumulation) for graph, each in self._registries.items()}
        return shared

    def of(self, variable):
        """The `Registry` of the graph of a variable of the model."""
        return self._of_graph(variable.graph if self._owner.home.graph_mode else None)

    def here(self):
        """The `Registry` of the default session's graph, or of here and now.

        Where neither has windows it is the only one that has.
        """
        home = self._owner.home
        session, here = home.v1.get_default_session(), home.v1.get_default_graph() if home.graph_mode else None
        known = [graph for graph, registry in self._registries.items() if registry.windows]
        # A session can be the default one outside of its graph, and in eager mode.
        for graph in ([] if session is None else [session.graph]) + [here]:
            if graph in known:
                return self._of_graph(graph)
        return self._of_graph(known[0] if len(known) == 1 else here)

    @property
    def are_in_graphs(self):
        """Whether there is any window at all, in whatever graph."""
        return any(registry.windows for registry in self._registries.values())

    def _of_graph(self, graph):
        found = self._registries.get(graph)
        if found is None:
            found = self._registries[graph] = Registry(self._owner, graph)
        return found
