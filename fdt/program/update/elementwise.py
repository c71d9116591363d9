"""Operations of an update that compute each entry by itself, and numbers, which are the same for all entries."""

from collections.abc import Collection

from fdt.program.node_graph import Graph, Tensor, data_inputs

ELEMENTWISE = set(
    "Abs Add AddN AddV2 Cast ClipByValue Div DivNoNan Equal Exp Floor Greater GreaterEqual IsFinite IsInf IsNan Less "
    "LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg NotEqual OnesLike Pow RealDiv "
    "Reciprocal Round Rsqrt SelectV2 Sigmoid Sign Sqrt Square SquaredDifference Sub Tanh ZerosLike".split()
)


class Scalars:
    """Recognises tensors without dimensions that come from constants, learning rates and variables that are numbers."""

    def __init__(self, graph: Graph, variables: Collection[str], rates: Collection[str]):
        """
        Args:
            graph: Of the update.
            variables: The placeholders of variables that are numbers.
            rates: The names of the functions that stand for learning rates.
        """
        self._graph, self._variables, self._rates = graph, set(variables), set(rates)

    def __contains__(self, edge: Tensor) -> bool:
        node = self._graph.nodes[edge[0]]
        if node.op == "Const":
            return not node.attr["value"].tensor.tensor_shape.dim
        if node.op == "PartitionedCall":
            # The hole of a learning rate: (share, rate) -> rate.
            return node.attr["f"].func.name in self._rates and data_inputs(node)[1] in self
        if node.op == "ReadVariableOp":
            return data_inputs(node)[0][0] in self._variables
        return node.op in ELEMENTWISE and all(each in self for each in data_inputs(node))
