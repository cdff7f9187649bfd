"""Keeps an optimizer's windows for each graph that it trains in."""

from legacyga.optimizers.registry import Registry


class Windows(object):
    """A `Registry` for each TensorFlow 1 graph (an Estimator uses one optimizer in many), and one for eager mode."""

    def __init__(self, accumulation):
        self._owner = accumulation
        self._registries = {}

    def shared_with(self, accumulation):
        shared = Windows(accumulation)
        shared._registries = {graph: each.shared_with(accumulation) for graph, each in self._registries.items()}
        return shared

    def of(self, variable):
        return self._of_graph(variable.graph if self._owner.home.graph_mode else None)

    def here(self):
        """The `Registry` that the running code means.

        The default session's or the current graph's, whichever first has windows; else the only one with windows; else
        the current graph's.
        """
        home = self._owner.home
        session, here = home.v1.get_default_session(), home.v1.get_default_graph() if home.graph_mode else None
        known = [graph for graph, registry in self._registries.items() if registry.windows]
        # A default session may exist in eager mode, and its graph need not be the current one.
        for graph in ([] if session is None else [session.graph]) + [here]:
            if graph in known:
                return self._of_graph(graph)
        return self._of_graph(known[0] if len(known) == 1 else here)

    @property
    def exist_somewhere(self):
        return any(registry.windows for registry in self._registries.values())

    def _of_graph(self, graph):
        found = self._registries.get(graph)
        if found is None:
            # If another thread has made one since, keep that.
            found = self._registries.setdefault(graph, Registry(self._owner, graph))
        return found
