"""The operations that a program may hold, and what their attributes may say.

The rule: an operation is listed if a training step has it, and if it keeps within its tensors whatever their shapes and values
are. Steps are those of the client's examples, the fidelity cases and the sweep's situations, the layers, losses, metrics and
optimizers of Keras 2 and 3, and TensorFlow's functions of tensors, with their gradients; and what one of these holds in the
TensorFlows that clients and pools run on (2.16 to 2.21). Behind each class of operations stands what it makes of hostile
shapes and indices; `tests/fuzz/test_operations.py` feeds them such. What is not listed is refused: above all data sets and
their iterators, queues, readers of formats (images, sounds, records), CSR matrices, quantised arithmetic, what belongs to XLA,
TPUs and TensorFlow's tests, and what gives out memory that nobody has written (`Empty`). Two are off that ragged tensors could
have, as hostile input ends their process: `RaggedTensorToVariantGradient` and `UnicodeDecodeWithOffsets`.

Others compare shapes only where a graph is imported, and read and wrote other memory in a branch: `ResourceScatterAdd` and its
like, `ResourceApplyAdadelta` and `ResourceApplyAdamWithAmsgrad`. A client exports what does the same (`checked_writes.py`).

Some that are listed can end their process, too, by a type or size that TensorFlow checks before it touches anything: with its
worker a program ends its own job, and nobody else's.

In brackets stand the attributes of an operation that may hold more than numbers, types and shapes; `ATTRIBUTES` has a rule for
each. What an operation reads from a string *tensor* has been judged with its name: none of the allowed ones takes it for a path
or an address.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

from fdt.transport import wire


@dataclasses.dataclass(frozen=True)
class Rule:
    """The content that an attribute may have, in addition to numbers, types and shapes.

    Attributes:
        says: The same in words.
        text: Whether it may hold these bytes; None if no text.
        function: Whether it may name functions of the program's library.
        tensor: Whether it may hold tensors of numbers or strings.
    """

    says: str
    text: Callable[[bytes], object] | None = None
    function: bool = False
    tensor: bool = False


def _matching(says: str, pattern: bytes) -> Rule:
    return Rule(says, re.compile(pattern, re.DOTALL).fullmatch)


# How TensorFlow divides up a call's work. Numbers and GPU settings say no more than that; what else there is names hosts
# (cluster_def, device_filters, coordination_config), or code (custom_optimizers). Field -> what it may hold.
_CONFIG: wire.Shape = {
    **dict.fromkeys((2, 3, 5, 7, 8, 9, 11, 15, 17), wire.NUMBER),
    1: wire.ANYTHING,  # device_count
    6: wire.ANYTHING,  # gpu_options
    10: {**dict.fromkeys((2, 4, 5, 6, 7, 8, 9), wire.NUMBER), 3: wire.NUMBERS, 10: wire.NUMBERS},  # graph_options
    16: wire.NUMBERS,  # experimental
    18: wire.ANYTHING,  # pluggable_device_options
}

# What is a rule's `says` must read well behind "it may hold".
FUNCTION = Rule("functions of the program's library", function=True)
TENSOR = Rule("tensors of numbers or strings", tensor=True)
# No text at all: a path to read from, for example.
EMPTY = _matching("no text", rb"")
# TensorFlow compares it with words that it knows. Neither a path nor an address is a word.
WORD = _matching("one word of letters, digits, _ and -", rb"[A-Za-z0-9_-]*")
# A name under which a thing is found again in the memory of the worker's own process, never outside it.
NAME = _matching("a name", rb".*")
# Printed, put into texts, matched against them, kept for messages, or parsed as a record of numbers and switches.
TEXT = _matching("text", rb".*")
# The standard streams and the log of the worker; "file://..." would write.
STREAM = _matching(
    "stdout, stderr, log(info), log(warning) or log(error)", rb"stdout|stderr|log\((info|warning|error)\)"
)
EXECUTOR = _matching("DEFAULT or SINGLE_THREADED_EXECUTOR", rb"|DEFAULT|SINGLE_THREADED_EXECUTOR")
CONFIG = Rule("settings that name neither hosts nor code", lambda raw: wire.has_shape(raw, _CONFIG))
# A device of the worker's own host. One of another job or task is another process.
DEVICE = _matching(
    "a CPU or GPU of the worker's own host",
    rb"(/job:localhost)?(/replica:0)?(/task:0)?(/(device:)?(CPU|GPU|cpu|gpu)(:(\*|\d{1,3}))?)?",
)
BESIDE = _matching("loc:@ and a node's name", rb"(loc:@.*)?")

# Rule -> the attributes it is for, whatever operation has them.
_ATTRIBUTES: dict[Rule, str] = {
    FUNCTION: """
        body branches comparator computation cond dataset_factory else_branch f finalize_func index_map_func init_func
        key_func map_func next_func predicate reduce_func reducer scatter select then_branch update_computation
        window_size_func
    """,
    TENSOR: "bad_color value",
    EMPTY: "config vocab_file",
    WORD: """
        align bad_indices_policy compression_type data_format dct_method density_unit deterministic device_names direction
        dst_format encoding errors fill_mode format input_encoding input_mode input_order input_quant_mode
        interpolation kernel_type loss_type method mode noise output_encoding padding reduction_type rnn_mode round_mode
        row_partition_types set_operation src_format unit
    """,
    NAME: "container debug_name frame_name shared_name source stack_name tensor_array_name var_name",
    TEXT: """
        cardinality_options context_dense_keys context_sparse_keys dense_keys description dimension_numbers
        display_name end equation feature_list_dense_keys feature_list_dense_missing_assumed_empty
        feature_list_sparse_keys field_delim fill labels left_pad message metadata na_value pattern placeholder
        precision_config ragged_keys rewrite right_pad separator serialized_options sparse_keys template xmp_metadata
    """,
    STREAM: "output_stream",
    EXECUTOR: "executor_type",
    CONFIG: "config_proto",
    DEVICE: "allowed_devices",
}
ATTRIBUTES: Mapping[str, Rule] = {name: rule for rule, names in _ATTRIBUTES.items() for name in names.split()}

# What every node and every function may have besides: TensorFlow's Python writes it, or reads it, beside the operation's own
# attributes. Those of TPUs, of TensorRT, and of code that is compiled elsewhere are not among them.
_NUMBERS = Rule("numbers, types and shapes")
_ANNOTATIONS: dict[Rule, str] = {
    _NUMBERS: """
        _OutputsOnOpDevice _XlaCompile _XlaMustCompile _XlaSeparateCompiledGradients _cloned _collective_manager_ids
        _disable_acd _disable_call_shape_inference _has_manual_control_dependencies _independent_side_effects
        _input_hostmem _input_shapes _lower_using_switch_merge _noinline _num_original_outputs _output_hostmem
        _output_shapes _read_only_resource_inputs _shape _stateful_parallelism _tf_data_function _handle_dtypes
        _handle_shapes _xla_propagate_compile_time_consts
    """,
    BESIDE: "_class",
    WORD: "_construction_context",
    NAME: "_XlaScope _gradient_op_type _implements _original_func_name _user_specified_name",
}
ANNOTATIONS: Mapping[str, Rule] = {name: rule for rule, names in _ANNOTATIONS.items() for name in names.split()}
# And what a function may have: what its layer calls it, by which TensorFlow chooses among functions of the library.
_CHOICES = (
    "api_implements api_preferred_device backward_function_name disable_summaries_at_runtime forward_function_name"
)
FUNCTION_ATTRIBUTES: Mapping[str, Rule] = {**ANNOTATIONS, **dict.fromkeys(_CHOICES.split(), NAME)}

# What they do, and what that makes of hostile shapes and indices -> their names, and in brackets the attributes that have a
# rule above.
ALLOWED: dict[str, str] = {
    "They decide what runs, and call functions; admission bounds how deep. A branch out of range is the last one.": """
        Assert Case(branches) DeviceIndex(device_names) Enter(frame_name) Exit Identity If(else_branch then_branch)
        LoopCond Merge NextIteration NoOp PartitionedCall(config config_proto executor_type f) Select
        StatefulPartitionedCall(config config_proto executor_type f) StatelessCase(branches) StatelessIf(else_branch
        then_branch) StatelessWhile(body cond) Switch While(body cond)
    """,
    "They hand on what is there, or its shape; none gives out memory that nobody has written.": """
        CheckNumerics(message) CheckNumericsV2(message) Const(value) EnsureShape IdentityN OptionalFromValue
        OptionalGetValue OptionalHasValue OptionalNone Placeholder PlaceholderWithDefault PreventGradient(message)
        Print(message) PrintV2(end output_stream) Rank ReadVariableOp Shape ShapeN Size Snapshot StopGradient Timestamp
    """,
    "They read and write variables: a handle carries its type, and indices are compared with the shape.": """
        AssignAddVariableOp AssignSubVariableOp AssignVariableOp ResourceGather ResourceGatherNd
        ResourceScatterNdAdd(bad_indices_policy) ResourceScatterNdMax(bad_indices_policy)
        ResourceScatterNdMin(bad_indices_policy) ResourceScatterNdSub(bad_indices_policy)
        ResourceScatterNdUpdate(bad_indices_policy) ResourceStridedSliceAssign VarIsInitializedOp VariableShape
    """,
    "They are optimizers' updates: variable, slots and gradient must have one shape; rows are compared with it.": """
        ResourceApplyAdaMax ResourceApplyAdagrad ResourceApplyAdagradDA ResourceApplyAdagradV2
        ResourceApplyAdam ResourceApplyAddSign ResourceApplyCenteredRMSProp
        ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyKerasMomentum
        ResourceApplyMomentum ResourceApplyPowerSign ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent
        ResourceApplyRMSProp ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA
        ResourceSparseApplyAdagradV2 ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl
        ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum
        ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp
    """,
    "They hold lists, arrays, stacks and tables: each compares its handle's type, and places with the length.": """
        EmptyTensorList LookupTableExportV2 LookupTableFindV2 LookupTableSizeV2 StackCloseV2 StackPopV2 StackPushV2
        StackV2(stack_name) TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3 TensorArrayGradV3(source)
        TensorArrayGradWithShape(source) TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3
        TensorArrayV3(tensor_array_name) TensorArrayWriteV3 TensorListConcat TensorListConcatLists TensorListConcatV2
        TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
        TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve TensorListResize
        TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit
        TensorListStack
    """,
    "They draw random numbers: what they are told is a shape, or a distribution's parameters, which they broadcast.": """
        ComputeAccidentalHits FixedUnigramCandidateSampler(vocab_file) LearnedUnigramCandidateSampler
        LogUniformCandidateSampler Multinomial ParameterizedTruncatedNormal RandomGamma RandomGammaGrad RandomPoissonV2
        RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip RngSkip
        SampleDistortedBoundingBoxV2 StatefulRandomBinomial StatefulStandardNormalV2 StatefulTruncatedNormal
        StatefulUniform StatefulUniformFullInt StatefulUniformInt StatelessMultinomial
        StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
        StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
        StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt
        StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
        StatelessSampleDistortedBoundingBox StatelessShuffle StatelessTruncatedNormal StatelessTruncatedNormalV2
        TruncatedNormal UniformCandidateSampler
    """,
    "They work on texts, whose length they know; none parses a format.": """
        AsString(fill) EditDistance ReduceJoin(separator) RegexFullMatch RegexReplace StaticRegexFullMatch(pattern)
        StaticRegexReplace(pattern rewrite) StringFormat(placeholder template) StringJoin(separator) StringLength(unit)
        StringLower(encoding) StringNGrams(left_pad right_pad separator) StringSplitV2 StringStrip
        StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper(encoding) Substr(unit)
        UnicodeDecode(errors input_encoding) UnicodeEncode(errors output_encoding) UnicodeTranscode(errors
        input_encoding output_encoding)
    """,
    "They work on images as numbers, and write them (summaries); boxes are cut to the image.": """
        AdjustContrastv2 AdjustHue AdjustSaturation CropAndResize(method) CropAndResizeGradBoxes(method)
        CropAndResizeGradImage(method) EncodePng ExtractImagePatches(padding) HSVToRGB HistogramSummary
        ImageProjectiveTransformV2(fill_mode interpolation) ImageProjectiveTransformV3(fill_mode interpolation)
        ImageSummary(bad_color) MergeSummary NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 RGBToHSV
        ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
        ResizeNearestNeighborGrad ScalarSummary ScaleAndTranslate(kernel_type) ScaleAndTranslateGrad(kernel_type)
    """,
    "They work on sparse and ragged tensors, whose indices and row splits they compare with the shape.": """
        DenseCountSparseOutput DenseToDenseSetOperation(set_operation) DenseToSparseSetOperation(set_operation)
        DeserializeSparse RaggedBincount RaggedCountSparseOutput RaggedCross(input_order) RaggedGather RaggedRange
        RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor(row_partition_types) RaggedTensorToVariant
        SerializeManySparse SerializeSparse SetSize SparseAdd SparseAddGrad SparseBincount SparseConcat
        SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv
        SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseReduceMax SparseReduceSum
        SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2
        SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2
        SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad SparseSegmentSumGradV2
        SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax SparseSparseMaximum
        SparseSparseMinimum SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense
        SparseToSparseSetOperation(set_operation)
    """,
    "They imitate quantised numbers with floating-point ones.": """
        FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
        FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantizeV2(round_mode)
        QuantizeAndDequantizeV3 QuantizeAndDequantizeV4(round_mode) QuantizeAndDequantizeV4Grad
    """,
    "They are layers of networks, and their gradients: windows and paddings are compared with the shapes.": """
        AvgPool(data_format padding) AvgPool3D(data_format padding) AvgPool3DGrad(data_format padding)
        AvgPoolGrad(data_format padding) BatchToSpaceND BiasAdd(data_format) BiasAddGrad(data_format)
        CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 Conv2D(data_format padding)
        Conv2DBackpropFilter(data_format padding) Conv2DBackpropInput(data_format padding) Conv3D(data_format padding)
        Conv3DBackpropFilterV2(data_format padding) Conv3DBackpropInputV2(data_format padding)
        CudnnRNNBackpropV3(direction input_mode rnn_mode) CudnnRNNV3(direction input_mode rnn_mode)
        DepthToSpace(data_format) DepthwiseConv2dNative(data_format padding)
        DepthwiseConv2dNativeBackpropFilter(data_format padding) DepthwiseConv2dNativeBackpropInput(data_format padding)
        Dilation2D(padding) Dilation2DBackpropFilter(padding) Dilation2DBackpropInput(padding) Elu EluGrad
        ExtractVolumePatches(padding) FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad
        FusedBatchNorm(data_format) FusedBatchNormGrad(data_format) FusedBatchNormGradV2(data_format)
        FusedBatchNormGradV3(data_format) FusedBatchNormV2(data_format) FusedBatchNormV3(data_format) InTopK InTopKV2
        L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad LogSoftmax MaxPool(data_format padding) MaxPool3D(data_format
        padding) MaxPool3DGrad(data_format padding) MaxPool3DGradGrad(data_format padding) MaxPoolGrad(data_format
        padding) MaxPoolGradGrad(data_format padding) MaxPoolGradWithArgmax(padding) MaxPoolWithArgmax(padding)
        MirrorPad(mode) MirrorPadGrad(mode) Relu Relu6 Relu6Grad ReluGrad Selu SeluGrad Softmax
        SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad SpaceToBatchND
        SpaceToDepth(data_format) SparseSoftmaxCrossEntropyWithLogits TopKV2
    """,
    "They are linear algebra and Fourier transforms: shapes must agree; there are no indices.": """
        BandedTriangularSolve BatchMatMul BatchMatMulV2 BatchMatMulV3 Cholesky Cross Diag DiagPart Eig Einsum(equation)
        FFT FFT2D FFT3D IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D LogMatrixDeterminant Lu MatMul MatrixBandPart
        MatrixDeterminant MatrixDiagPartV3(align) MatrixDiagV3(align) MatrixInverse MatrixLogarithm
        MatrixSetDiagV3(align) MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr RFFT RFFT2D RFFT3D
        SelfAdjointEigV2 Svd TridiagonalMatMul TridiagonalSolve
    """,
    "They compute entry by entry: shapes broadcast, or are refused; there are no indices.": """
        Abs Acos Acosh Add AddN AddV2 Angle Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0
        BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc Bitcast BitwiseAnd BitwiseOr BitwiseXor
        Cast Ceil ClipByValue Complex ComplexAbs Conj Cos Cosh Dawsn Digamma Div DivNoNan Equal Erf Erfc Erfinv Exp
        Expint Expm1 Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Igamma IgammaGradA Igammac Imag
        Invert IsFinite IsInf IsNan LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum
        Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike Polygamma PopulationCount Pow Real RealDiv
        Reciprocal ReciprocalGrad RightShift Rint Round Rsqrt RsqrtGrad SelectV2 Sigmoid SigmoidGrad Sign Sin Sinh
        Spence Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad ToBool TruncateDiv TruncateMod Xdivy Xlog1py
        Xlogy ZerosLike Zeta
    """,
    "They reduce, cut, order and put together: each axis, index and size that is data is compared with the shape.": """
        All Any ArgMax ArgMin Bincount BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize ConcatOffset ConcatV2
        ConjugateTranspose Cumprod Cumsum CumulativeLogsumexp DenseBincount DynamicPartition DynamicStitch EuclideanNorm
        ExpandDims Fill Gather GatherNd(bad_indices_policy) GatherV2 HistogramFixedWidth InvertPermutation
        IsotonicRegression LinSpace ListDiff LowerBound Max Mean Min NthElement OneHot Pack Pad PadV2
        ParallelDynamicStitch Prod Range Reshape Reverse ReverseSequence ReverseV2 Roll ScatterNd(bad_indices_policy)
        SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2
        Slice Split SplitV Squeeze StridedSlice StridedSliceGrad Sum TensorScatterAdd(bad_indices_policy)
        TensorScatterMax(bad_indices_policy) TensorScatterMin(bad_indices_policy) TensorScatterSub(bad_indices_policy)
        TensorScatterUpdate(bad_indices_policy) TensorStridedSliceUpdate Tile Transpose Unique UniqueV2 UniqueWithCounts
        UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
        UnsortedSegmentSum UpperBound Where XlaDynamicUpdateSlice
    """,
}

# What the function of a row may hold besides (`job_pb2.ReadRows`): readers of the formats of files. Where workers read files,
# these are the script's own, or those of the pool's operator; but a client may hand a decoder bytes of its own, too.
DECODERS = frozenset(
    """
    DecodeAndCropJpeg DecodeBase64 DecodeBmp DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJpeg DecodePaddedRaw
    DecodePng DecodeRaw DecodeWav ExtractJpegShape ParseExampleV2 ParseSingleExample
    """.split()
)

# Operations that users meet whose effect lies outside of the worker, and why no pool runs them, even if its operator admits
# them. Behind "The pool does not run the operation 'X': ".
REFUSED: dict[str, str] = {
    "it runs Python": "EagerPyFunc PyFunc PyFuncStateless",
    "it reads or writes files": "MatchingFiles ReadFile WriteFile",
    "it saves or restores files": "RestoreV2 SaveV2",
    "it reads data from files": "FixedLengthRecordDatasetV2 TFRecordDatasetV2 TextLineDataset",
    "it writes summaries into files": "CreateSummaryFileWriter FlushSummaryWriter WriteScalarSummary WriteSummary",
    "it talks to other processes": "CollectiveReduceV2 HorovodAllreduce HorovodBroadcast NcclAllReduce",
    "it makes objects of bytes, which TensorFlow then trusts": "ParseTensor",
}

# Attributes that may name the type of a handle: values of these go through the operation as they are, or are its own lists and
# optional values. Nothing else makes resources or variants: a program has those that its variables, tables and lists are.
HANDLES: Mapping[str, frozenset[str]] = {
    "resource": frozenset(
        """
        Case.Tin Enter.T Exit.T Identity.T IdentityN.T If.Tin If.Tout Merge.T NextIteration.T PartitionedCall.Tin
        PartitionedCall.Tout Placeholder.dtype StatefulPartitionedCall.Tin StatefulPartitionedCall.Tout StatelessCase.Tin
        StatelessIf.Tin StatelessWhile.T Switch.T While.T
        """.split()
    ),
    "variant": frozenset(
        """
        AddN.T Case.Tin Case.Tout ConcatV2.T EmptyTensorList.element_dtype EnsureShape.T Enter.T Exit.T ExpandDims.T
        GatherV2.Tparams Identity.T IdentityN.T If.Tin If.Tout Merge.T NextIteration.T OptionalFromValue.Toutput_types
        OptionalGetValue.output_types Pack.T PartitionedCall.Tin PartitionedCall.Tout Reshape.T Shape.T Slice.T
        StatefulPartitionedCall.Tin StatefulPartitionedCall.Tout StatelessCase.Tin StatelessCase.Tout StatelessIf.Tin
        StatelessIf.Tout StatelessWhile.T StopGradient.T StridedSlice.T Switch.T TensorListFromTensor.element_dtype
        TensorListGetItem.element_dtype TensorListPopBack.element_dtype TensorListPushBack.element_dtype
        TensorListReserve.element_dtype TensorListSetItem.element_dtype TensorListStack.element_dtype Unpack.T While.T
        ZerosLike.T
        """.split()
    ),
}

OPERATIONS: Mapping[str, Mapping[str, Rule]] = {
    name: {attribute: ATTRIBUTES[attribute] for attribute in attributes.split()}
    for names in ALLOWED.values()
    for name, attributes in re.findall(r"([^\s()]+)(?:\(([^)]*)\))?", names)
}
REASONS: Mapping[str, str] = {name: reason for reason, names in REFUSED.items() for name in names.split()}
# What may stand beside a function's name: attributes that a call of it has, which TensorFlow copies there.
CALL: Mapping[str, Rule] = OPERATIONS["StatefulPartitionedCall"]
