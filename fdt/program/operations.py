"""The operations that a program may hold, and what their attributes may say, judged one by one.

`ALLOWED` and `REFUSED` together name every operation of the TensorFlows that clients and pools run on (2.16 to 2.21); a test
goes over their registries and fails for one that is in neither. In brackets stand the attributes of an operation that may
hold more than numbers, types and shapes; `ATTRIBUTES` has a rule for each. What an operation reads from a string *tensor*
has been judged with its name: none of the allowed ones takes it for a path or an address.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

from fdt.transport import wire


@dataclasses.dataclass(frozen=True)
class Rule:
    """What an attribute may hold besides numbers, types and shapes.

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

# What they do -> their names, and in brackets the attributes that have a rule above.
ALLOWED: dict[str, str] = {
    "They decide what runs, and call functions.": """
        Assert Case(branches) ControlTrigger DeviceIndex(device_names) Enter(frame_name) Exit For(body) Identity
        If(else_branch then_branch) LoopCond MapDefun(f) Merge NextIteration NoOp
        PartitionedCall(config config_proto executor_type f) RefEnter(frame_name) RefExit RefIdentity RefMerge
        RefNextIteration RefSelect RefSwitch Select StatefulPartitionedCall(config config_proto executor_type f)
        StatelessCase(branches) StatelessIf(else_branch then_branch) StatelessWhile(body cond) Switch
        SymbolicGradient(f) While(body cond) XlaIf(else_branch then_branch) XlaWhile(body cond)
    """,
    "They hand on what is there.": """
        CheckNumerics(message) CheckNumericsV2(message) Const(value) DeepCopy Empty EnsureShape FakeParam
        GuaranteeConst HostConst(value) IdentityN InplaceAdd InplaceSub InplaceUpdate Placeholder PlaceholderV2
        PlaceholderWithDefault PreventGradient(message) Print(message) PrintV2(end output_stream) Rank ReadVariableOp
        Shape ShapeN Size Snapshot StopGradient Timestamp XlaOptimizationBarrier
    """,
    "They read and write variables of the worker's own.": """
        Assign AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp AssignVariableOp ConsumeMutexLock CountUpTo
        DestroyResourceOp DestroyTemporaryVariable(var_name) DisableCopyOnRead Gather GatherNd(bad_indices_policy)
        GatherV2 IsVariableInitialized MutexLock MutexV2(container shared_name) ResourceCountUpTo ResourceGather
        ResourceGatherNd ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin
        ResourceScatterMul ResourceScatterNdAdd(bad_indices_policy) ResourceScatterNdMax(bad_indices_policy)
        ResourceScatterNdMin(bad_indices_policy) ResourceScatterNdSub(bad_indices_policy)
        ResourceScatterNdUpdate(bad_indices_policy) ResourceScatterSub ResourceScatterUpdate
        ResourceStridedSliceAssign ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul
        ScatterNd(bad_indices_policy) ScatterNdAdd(bad_indices_policy) ScatterNdMax(bad_indices_policy)
        ScatterNdMin(bad_indices_policy) ScatterNdNonAliasingAdd(bad_indices_policy) ScatterNdSub(bad_indices_policy)
        ScatterNdUpdate(bad_indices_policy) ScatterSub ScatterUpdate StridedSliceAssign TemporaryVariable(var_name)
        VarHandleOp(allowed_devices container debug_name shared_name) VarIsInitializedOp
        Variable(container shared_name) VariableShape VariableV2(container shared_name)
    """,
    "They are optimizers' updates.": """
        AccumulatorApplyGradient AccumulatorNumAccumulated AccumulatorSetGlobalStep AccumulatorTakeGradient
        ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradDA ApplyAdagradV2 ApplyAdam ApplyAddSign
        ApplyCenteredRMSProp ApplyFtrl ApplyFtrlV2 ApplyGradientDescent ApplyMomentum ApplyPowerSign
        ApplyProximalAdagrad ApplyProximalGradientDescent ApplyRMSProp
        ConditionalAccumulator(container reduction_type shared_name) ResourceAccumulatorApplyGradient
        ResourceAccumulatorNumAccumulated ResourceAccumulatorSetGlobalStep ResourceAccumulatorTakeGradient
        ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA ResourceApplyAdagradV2
        ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAddSign ResourceApplyCenteredRMSProp
        ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyKerasMomentum
        ResourceApplyMomentum ResourceApplyPowerSign ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent
        ResourceApplyRMSProp ResourceConditionalAccumulator(container reduction_type shared_name)
        ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA
        ResourceSparseApplyAdagradV2 ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl
        ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum
        ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp
        SdcaFprint SdcaOptimizer(loss_type) SdcaOptimizerV2(loss_type) SdcaShrinkL1 SparseAccumulatorApplyGradient
        SparseAccumulatorTakeGradient SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradDA SparseApplyAdagradV2
        SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlV2 SparseApplyMomentum SparseApplyProximalAdagrad
        SparseApplyProximalGradientDescent SparseApplyRMSProp
        SparseConditionalAccumulator(container reduction_type shared_name)
    """,
    "They hold lists, arrays, stacks, maps, queues and tables in the worker's memory.": """
        AccumulateNV2 AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable
        AnonymousMutableHashTableOfTensors Barrier(container shared_name) BarrierClose BarrierIncompleteSize
        BarrierInsertMany BarrierReadySize BarrierTakeMany ComputeBatchSize EmptyTensorList EmptyTensorMap
        FIFOQueue(container shared_name) FIFOQueueV2(container shared_name) HashTable(container shared_name)
        HashTableV2(container shared_name) InitializeTable InitializeTableFromDataset InitializeTableV2
        LookupTableExport LookupTableExportV2 LookupTableFind LookupTableFindV2 LookupTableImport LookupTableImportV2
        LookupTableInsert LookupTableInsertV2 LookupTableRemoveV2 LookupTableSize LookupTableSizeV2
        MapClear(container shared_name) MapIncompleteSize(container shared_name) MapPeek(container shared_name)
        MapSize(container shared_name) MapStage(container shared_name) MapUnstage(container shared_name)
        MapUnstageNoKey(container shared_name) MutableDenseHashTable(container shared_name)
        MutableDenseHashTableV2(container shared_name) MutableHashTable(container shared_name)
        MutableHashTableOfTensors(container shared_name) MutableHashTableOfTensorsV2(container shared_name)
        MutableHashTableV2(container shared_name) OrderedMapClear(container shared_name)
        OrderedMapIncompleteSize(container shared_name) OrderedMapPeek(container shared_name)
        OrderedMapSize(container shared_name) OrderedMapStage(container shared_name)
        OrderedMapUnstage(container shared_name) OrderedMapUnstageNoKey(container shared_name)
        PaddingFIFOQueue(container shared_name) PaddingFIFOQueueV2(container shared_name) ParallelConcat
        PriorityQueue(container shared_name) PriorityQueueV2(container shared_name) QueueClose QueueCloseV2
        QueueDequeue QueueDequeueMany QueueDequeueManyV2 QueueDequeueUpTo QueueDequeueUpToV2 QueueDequeueV2
        QueueEnqueue QueueEnqueueMany QueueEnqueueManyV2 QueueEnqueueV2 QueueIsClosed QueueIsClosedV2 QueueSize
        QueueSizeV2 RandomShuffleQueue(container shared_name) RandomShuffleQueueV2(container shared_name)
        Stack(stack_name) StackClose StackCloseV2 StackPop StackPopV2 StackPush StackPushV2 StackV2(stack_name)
        Stage(container shared_name) StageClear(container shared_name) StagePeek(container shared_name)
        StageSize(container shared_name) TensorArray(tensor_array_name) TensorArrayClose TensorArrayCloseV2
        TensorArrayCloseV3 TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3 TensorArrayGather
        TensorArrayGatherV2 TensorArrayGatherV3 TensorArrayGrad(source) TensorArrayGradV2(source)
        TensorArrayGradV3(source) TensorArrayGradWithShape(source) TensorArrayPack TensorArrayRead TensorArrayReadV2
        TensorArrayReadV3 TensorArrayScatter TensorArrayScatterV2 TensorArrayScatterV3 TensorArraySize
        TensorArraySizeV2 TensorArraySizeV3 TensorArraySplit TensorArraySplitV2 TensorArraySplitV3 TensorArrayUnpack
        TensorArrayV2(tensor_array_name) TensorArrayV3(tensor_array_name) TensorArrayWrite TensorArrayWriteV2
        TensorArrayWriteV3 TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
        TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
        TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterIntoExistingList
        TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack TensorMapErase TensorMapHasKey
        TensorMapInsert TensorMapLookup TensorMapSize TensorMapStackKeys Unstage(container shared_name)
    """,
    "They read data sets that are in memory.": """
        AnonymousIterator AnonymousIteratorV2 AnonymousIteratorV3 AnonymousRandomSeedGenerator AnonymousSeedGenerator
        AssertCardinalityDataset BatchDatasetV2(metadata) ConcatenateDataset(metadata)
        DatasetCardinality(cardinality_options) DatasetToSingleElement(metadata) DecodeCSV(field_delim na_value)
        DecodeCompressed(compression_type) DecodeJSONExample DecodePaddedRaw DecodeRaw DeleteIterator
        DeleteRandomSeedGenerator DeleteSeedGenerator DenseToSparseBatchDataset DirectedInterleaveDataset
        DummyIterationCounter DummySeedGenerator FilterDataset(metadata predicate) FlatMapDataset(f metadata)
        GeneratorDataset(finalize_func init_func metadata next_func) GetElementAtIndex GetOptions
        GlobalShuffleDataset(metadata) GroupByReducerDataset(finalize_func init_func key_func reduce_func)
        GroupByWindowDataset(key_func metadata reduce_func window_size_func) IgnoreErrorsDataset
        IndexFlatMapDataset(index_map_func map_func metadata) InterleaveDataset(f metadata)
        Iterator(container shared_name) IteratorGetNext IteratorGetNextAsOptional IteratorGetNextSync
        IteratorV2(container shared_name) LegacyParallelInterleaveDatasetV2(deterministic f metadata)
        ListDataset(metadata) MakeIterator MapAndBatchDataset(f metadata) MapDataset(f metadata)
        OneShotIterator(container dataset_factory shared_name) OptionalFromValue OptionalGetValue OptionalHasValue
        OptionalNone OptionsDataset(metadata serialized_options) PaddedBatchDataset(metadata)
        PaddedBatchDatasetV2(metadata) ParallelBatchDataset(deterministic metadata)
        ParallelFilterDataset(deterministic metadata predicate) ParallelInterleaveDataset(f metadata)
        ParallelInterleaveDatasetV2(f metadata) ParallelInterleaveDatasetV3(deterministic f metadata)
        ParallelInterleaveDatasetV4(deterministic f metadata) ParallelMapDataset(f metadata)
        ParallelMapDatasetV2(deterministic f metadata) ParseExample
        ParseExampleDataset(dense_keys ragged_keys sparse_keys)
        ParseExampleDatasetV2(dense_keys deterministic ragged_keys sparse_keys) ParseExampleV2
        ParseSequenceExample(context_dense_keys context_sparse_keys feature_list_dense_keys
        feature_list_dense_missing_assumed_empty feature_list_sparse_keys) ParseSequenceExampleV2
        ParseSingleExample(dense_keys sparse_keys) ParseSingleSequenceExample ParseTensor PrefetchDataset(metadata)
        RandomDataset(metadata) RandomDatasetV2(metadata) RangeDataset(metadata) RebatchDataset RebatchDatasetV2
        ReduceDataset(f metadata) RepeatDataset(metadata) SamplingDataset ScanDataset(f metadata) SerializeTensor
        ShardDataset(metadata) ShuffleAndRepeatDataset(metadata) ShuffleAndRepeatDatasetV2(metadata)
        ShuffleDataset(metadata) ShuffleDatasetV2(metadata) ShuffleDatasetV3(metadata) SkipDataset(metadata)
        SlidingWindowDataset SparseTensorSliceDataset TakeDataset(metadata) TakeWhileDataset(metadata predicate)
        TensorDataset(metadata) TensorSliceDataset(metadata) UnbatchDataset(metadata) UniqueDataset(metadata)
        UnwrapDatasetVariant WeightedFlatMapDataset(metadata) WindowDataset(metadata) WindowOp WrapDatasetVariant
        ZipDataset(metadata)
    """,
    "They draw random numbers.": """
        AllCandidateSampler ComputeAccidentalHits FixedUnigramCandidateSampler(vocab_file) KMC2ChainInitialization
        KmeansPlusPlusInitialization LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial
        NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma RandomGammaGrad RandomIndexShuffle
        RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip
        RngSkip SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 SobolSample StatefulRandomBinomial
        StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
        StatefulUniformInt StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial
        StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg StatelessRandomGetKeyCounter
        StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
        StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
        StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox StatelessShuffle
        StatelessTruncatedNormal StatelessTruncatedNormalV2 ThreadUnsafeUnigramCandidateSampler TruncatedNormal
        UniformCandidateSampler XlaRngBitGenerator
    """,
    "They work on texts.": """
        AsString(fill) DecodeBase64 EditDistance EncodeBase64 Fingerprint ReduceJoin(separator) RegexFullMatch
        RegexReplace ShardedFilename ShardedFilespec StaticRegexFullMatch(pattern) StaticRegexReplace(pattern rewrite)
        StringFormat(placeholder template) StringJoin(separator) StringLength(unit) StringLower(encoding)
        StringNGrams(left_pad right_pad separator) StringSplit StringSplitV2 StringStrip StringToHashBucket
        StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper(encoding) Substr(unit)
        UnicodeDecode(errors input_encoding) UnicodeDecodeWithOffsets(errors input_encoding)
        UnicodeEncode(errors output_encoding) UnicodeScript UnicodeTranscode(errors input_encoding output_encoding)
        UnsortedSegmentJoin(separator)
    """,
    "They work on images and sounds, and on their encoded bytes.": """
        AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation AudioMicrofrontend AudioSpectrogram AudioSummary
        AudioSummaryV2 CombinedNonMaxSuppression CropAndResize(method) CropAndResizeGradBoxes(method)
        CropAndResizeGradImage(method) DecodeAndCropJpeg(dct_method) DecodeBmp DecodeGif DecodeImage
        DecodeJpeg(dct_method) DecodeJxl DecodePng DecodeWav DecodeWebP DrawBoundingBoxes DrawBoundingBoxesV2
        EncodeJpeg(density_unit format xmp_metadata) EncodeJpegVariableQuality EncodePng EncodeWav
        ExtractGlimpse(noise) ExtractGlimpseV2(noise) ExtractImagePatches(padding) ExtractJpegShape
        GenerateBoundingBoxProposals HSVToRGB HistogramSummary ImageProjectiveTransformV2(fill_mode interpolation)
        ImageProjectiveTransformV3(fill_mode interpolation) ImageSummary(bad_color) MergeSummary Mfcc
        NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
        NonMaxSuppressionWithOverlaps RGBToHSV ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear
        ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad ScalarSummary
        ScaleAndTranslate(kernel_type) ScaleAndTranslateGrad(kernel_type)
        TensorSummary(description display_name labels) TensorSummaryV2
    """,
    "They work on sparse, ragged and composite tensors.": """
        AddManySparseToTensorsMap(container shared_name) AddSparseToTensorsMap(container shared_name)
        CSRSparseMatrixComponents CSRSparseMatrixToDense CSRSparseMatrixToSparseTensor
        CompositeTensorVariantFromComponents(metadata) CompositeTensorVariantToComponents(metadata)
        DenseCountSparseOutput DenseToCSRSparseMatrix DenseToDenseSetOperation(set_operation)
        DenseToSparseSetOperation(set_operation) DeserializeManySparse DeserializeSparse RaggedBincount
        RaggedCountSparseOutput RaggedCross(input_order) RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedGather
        RaggedRange RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor(row_partition_types)
        RaggedTensorToVariant RaggedTensorToVariantGradient SerializeManySparse SerializeSparse SetSize SparseAdd
        SparseAddGrad SparseBincount SparseConcat SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2
        SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad
        SparseMatMul SparseMatrixAdd SparseMatrixMatMul SparseMatrixMul SparseMatrixNNZ SparseMatrixOrderingAMD
        SparseMatrixSoftmax SparseMatrixSoftmaxGrad SparseMatrixSparseCholesky SparseMatrixSparseMatMul
        SparseMatrixTranspose SparseMatrixZeros SparseReduceMax SparseReduceMaxSparse SparseReduceSum
        SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad
        SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
        SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
        SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax
        SparseSoftmaxCrossEntropyWithLogits SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd
        SparseTensorDenseMatMul SparseTensorToCSRSparseMatrix SparseToDense SparseToSparseSetOperation(set_operation)
        TakeManySparseFromTensorsMap(container shared_name)
    """,
    "They compute on quantised numbers.": """
        Dequantize(mode) FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
        FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient
        QuantizeAndDequantize QuantizeAndDequantizeV2(round_mode) QuantizeAndDequantizeV3
        QuantizeAndDequantizeV4(round_mode) QuantizeAndDequantizeV4Grad QuantizeDownAndShrinkRange
        QuantizeV2(mode round_mode) QuantizedAdd QuantizedAvgPool(padding) QuantizedBatchNormWithGlobalNormalization
        QuantizedBiasAdd QuantizedConcat QuantizedConcatV2 QuantizedConv2D(padding) QuantizedConv2DAndRelu(padding)
        QuantizedConv2DAndReluAndRequantize(padding) QuantizedConv2DAndRequantize(padding)
        QuantizedConv2DPerChannel(padding) QuantizedConv2DWithBias(padding) QuantizedConv2DWithBiasAndRelu(padding)
        QuantizedConv2DWithBiasAndReluAndRequantize(padding) QuantizedConv2DWithBiasAndRequantize(padding)
        QuantizedConv2DWithBiasSignedSumAndReluAndRequantize(padding) QuantizedConv2DWithBiasSumAndRelu(padding)
        QuantizedConv2DWithBiasSumAndReluAndRequantize(padding) QuantizedDepthwiseConv2D(padding)
        QuantizedDepthwiseConv2DWithBias(padding) QuantizedDepthwiseConv2DWithBiasAndRelu(padding)
        QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize(padding) QuantizedInstanceNorm QuantizedMatMul
        QuantizedMatMulWithBias(input_quant_mode) QuantizedMatMulWithBiasAndDequantize(input_quant_mode)
        QuantizedMatMulWithBiasAndRelu(input_quant_mode) QuantizedMatMulWithBiasAndReluAndRequantize(input_quant_mode)
        QuantizedMatMulWithBiasAndRequantize(input_quant_mode) QuantizedMaxPool(padding) QuantizedMul QuantizedRelu
        QuantizedRelu6 QuantizedReluX QuantizedReshape QuantizedResizeBilinear RequantizationRange
        RequantizationRangePerChannel Requantize RequantizePerChannel UniformDequantize UniformQuantize
        UniformQuantizedAdd UniformQuantizedClipByValue UniformQuantizedConvolution(dimension_numbers padding)
        UniformQuantizedConvolutionHybrid(dimension_numbers padding) UniformQuantizedDot UniformQuantizedDotHybrid
        UniformRequantize
    """,
    "They are layers of neural networks, and their gradients.": """
        ApproxTopK AvgPool(data_format padding) AvgPool3D(data_format padding) AvgPool3DGrad(data_format padding)
        AvgPoolGrad(data_format padding) BatchNormWithGlobalNormalization BatchNormWithGlobalNormalizationGrad
        BatchToSpace BatchToSpaceND BiasAdd(data_format) BiasAddGrad(data_format) BiasAddV1 BlockLSTM BlockLSTMGrad
        BlockLSTMGradV2 BlockLSTMV2 CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2
        Conv2D(data_format padding) Conv2DBackpropFilter(data_format padding)
        Conv2DBackpropFilterV2(data_format padding) Conv2DBackpropInput(data_format padding)
        Conv2DBackpropInputV2(data_format padding) Conv3D(data_format padding) Conv3DBackpropFilter(padding)
        Conv3DBackpropFilterV2(data_format padding) Conv3DBackpropInput(padding)
        Conv3DBackpropInputV2(data_format padding) CudnnRNN(direction input_mode rnn_mode)
        CudnnRNNBackprop(direction input_mode rnn_mode) CudnnRNNBackpropV2(direction input_mode rnn_mode)
        CudnnRNNBackpropV3(direction input_mode rnn_mode) CudnnRNNCanonicalToParams(direction input_mode rnn_mode)
        CudnnRNNCanonicalToParamsV2(direction input_mode rnn_mode) CudnnRNNParamsSize(direction input_mode rnn_mode)
        CudnnRNNParamsToCanonical(direction input_mode rnn_mode)
        CudnnRNNParamsToCanonicalV2(direction input_mode rnn_mode) CudnnRNNV2(direction input_mode rnn_mode)
        CudnnRNNV3(direction input_mode rnn_mode) DataFormatDimMap(dst_format src_format)
        DataFormatVecPermute(dst_format src_format) DepthToSpace(data_format)
        DepthwiseConv2dNative(data_format padding) DepthwiseConv2dNativeBackpropFilter(data_format padding)
        DepthwiseConv2dNativeBackpropInput(data_format padding) Dilation2D(padding) Dilation2DBackpropFilter(padding)
        Dilation2DBackpropInput(padding) Elu EluGrad ExtractVolumePatches(padding) FractionalAvgPool
        FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FusedBatchNorm(data_format)
        FusedBatchNormGrad(data_format) FusedBatchNormGradV2(data_format) FusedBatchNormGradV3(data_format)
        FusedBatchNormV2(data_format) FusedBatchNormV3(data_format) FusedPadConv2D(mode padding)
        FusedResizeAndPadConv2D(mode padding) GRUBlockCell GRUBlockCellGrad InTopK InTopKV2 L2Loss LRN LRNGrad
        LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad LogSoftmax MaxPool(data_format padding)
        MaxPool3D(data_format padding) MaxPool3DGrad(data_format padding) MaxPool3DGradGrad(data_format padding)
        MaxPoolGrad(data_format padding) MaxPoolGradGrad(data_format padding) MaxPoolGradGradV2(data_format padding)
        MaxPoolGradGradWithArgmax(padding) MaxPoolGradV2(data_format padding) MaxPoolGradWithArgmax(padding)
        MaxPoolV2(data_format padding) MaxPoolWithArgmax(padding) MirrorPad(mode) MirrorPadGrad(mode) Relu Relu6
        Relu6Grad ReluGrad Selu SeluGrad Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
        SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth(data_format) TopK TopKUnique TopKV2 TopKWithUnique
        XlaConv(dimension_numbers precision_config) XlaConvV2(dimension_numbers precision_config)
    """,
    "They are linear algebra and Fourier transforms.": """
        BandedTriangularSolve BatchCholesky BatchCholeskyGrad BatchFFT BatchFFT2D BatchFFT3D BatchIFFT BatchIFFT2D
        BatchIFFT3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart BatchMatrixDeterminant BatchMatrixDiag
        BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag BatchMatrixSolve BatchMatrixSolveLs
        BatchMatrixTriangularSolve BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd Cholesky CholeskyGrad Cross Diag
        DiagPart Eig Einsum(equation) FFT FFT2D FFT3D FFTND IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND
        LogMatrixDeterminant Lu MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2
        MatrixDiagPartV3(align) MatrixDiagV2 MatrixDiagV3(align) MatrixExponential MatrixInverse MatrixLogarithm
        MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3(align) MatrixSolve MatrixSolveLs MatrixSquareRoot
        MatrixTriangularSolve Qr RFFT RFFT2D RFFT3D RFFTND SelfAdjointEig SelfAdjointEigV2 Svd TridiagonalMatMul
        TridiagonalSolve
    """,
    "They are XLA's.": """
        XlaDequantize(mode) XlaDot(dimension_numbers precision_config) XlaDotV2(dimension_numbers precision_config)
        XlaDynamicSlice XlaDynamicUpdateSlice XlaEinsum(equation) XlaGather(dimension_numbers) XlaKeyValueSort XlaPad
        XlaReduce(reducer) XlaReducePrecision XlaReduceWindow(computation) XlaRemoveDynamicDimensionSize
        XlaScatter(dimension_numbers update_computation) XlaSelectAndScatter(scatter select) XlaSelfAdjointEig
        XlaSetBound XlaSetDynamicDimensionSize XlaSort XlaSvd(precision_config) XlaVariadicReduce(reducer)
        XlaVariadicReduceV2(reducer) XlaVariadicSort(comparator)
    """,
    "They compute.": """
        Abs Acos Acosh Add AddN AddV2 All Angle Any ApproximateEqual ArgMax ArgMin Asin Asinh Atan Atan2 Atanh
        BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0
        BesselY1 Betainc Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastGradientArgs
        BroadcastTo Bucketize Cast Ceil ClipByValue Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj
        ConjugateTranspose Cos Cosh Cumprod Cumsum CumulativeLogsumexp Dawsn DenseBincount Digamma Div DivNoNan
        DynamicPartition DynamicStitch Equal Erf Erfc Erfinv EuclideanNorm Exp ExpandDims Expint Expm1 Fill Floor
        FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual HistogramFixedWidth Igamma IgammaGradA Igammac
        Imag Inv InvGrad Invert InvertPermutation IsFinite IsInf IsNan IsotonicRegression KthOrderStatistic LeftShift
        Less LessEqual Lgamma LinSpace ListDiff Log Log1p LogicalAnd LogicalNot LogicalOr LowerBound MakeUnique Max
        Maximum Mean Min Minimum Mod Mul MulNoNan Ndtri NearestNeighbors Neg NextAfter NotEqual NthElement OneHot
        OnesLike Pack Pad PadV2 ParallelDynamicStitch Polygamma PopulationCount Pow Prod Range Real RealDiv Reciprocal
        ReciprocalGrad Reshape Reverse ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad SegmentMax
        SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 SelectV2
        Sigmoid SigmoidGrad Sign Sin Sinh Slice Spence Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze
        StridedSlice StridedSliceGrad Sub Sum Tan Tanh TanhGrad TensorScatterAdd(bad_indices_policy)
        TensorScatterMax(bad_indices_policy) TensorScatterMin(bad_indices_policy) TensorScatterSub(bad_indices_policy)
        TensorScatterUpdate(bad_indices_policy) TensorStridedSliceUpdate Tile TileGrad ToBool Transpose TruncateDiv
        TruncateMod Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentMax
        UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike Zeta
    """,
}

# Why -> their names. Behind "The pool does not run the operation 'X': ".
REFUSED: dict[str, str] = {
    "it is one of TensorFlow's own tests": """
        A Attr AttrBool AttrBoolList AttrDefault AttrEmptyListDefault AttrEnum AttrEnumList AttrFloat AttrListDefault
        AttrListMin AttrListTypeDefault AttrMin AttrPartialShape AttrPartialShapeList AttrShape AttrShapeList
        AttrTypeDefault B Binary CheckPinned ComplexStruct ConstructionFails CopyOp DefaultAttrs DevicePlacementOp
        DtypeWithDefaultOp ExperimentalSleepDataset Fact FakeQueue FiveFloatOutputs FloatInput FloatOutput
        FloatOutputStringOutput Foo1 Foo2 Foo3 FuncAttr FuncListAttr GraphDefVersion InPolymorphicTwice Int64Output
        IntAttr IntInput IntInputFloatInput IntInputIntOutput IntOutput IntOutputFloatOutput IsTensorFloat32Enabled
        KernelLabel KernelLabelRequired ListInput ListOutput MixedStruct NInPolymorphicTwice NInTwice
        NInTwoTypeVariables NIntsIn NIntsOut NIntsOutDefault NPolymorphicIn NPolymorphicOut NPolymorphicOutDefault
        NPolymorphicRestrictIn NPolymorphicRestrictOut Namespace>TestStringOutput None Old OpWithDefaultAttr
        OpWithFutureDefaultAttr OutT OutTypeList OutTypeListRestrict Polymorphic PolymorphicDefaultOut PolymorphicOut
        RefIn RefInputFloatInput RefInputFloatInputIntOutput RefInputIntInput RefOut RefOutput RefOutputFloatOutput
        RequiresOlderGraphVersion ReservedAttr ReservedInput ResourceCreateOp ResourceInitializedOp ResourceUsingOp
        Restrict Simple SimpleStruct SleepDataset SleepIdentityOp SleepOp StringListAttr StubResourceHandleOp TestAttr
        TestStringOutput TwoFloatInputs TwoFloatInputsFloatOutput TwoFloatInputsIntOutput TwoFloatOutputs TwoIntInputs
        TwoIntOutputs TwoRefsIn TypeList TypeListRestrict TypeListTwice Unary
    """,
    "it ends the process": """
        Abort
    """,
    "it drives a TPU": """
        AllToAll AssignVariableXlaConcatND CollateTPUEmbeddingMemory ComputeDedupDataSize ComputeDedupDataSizeV2
        ComputeDedupDataTupleMask ComputeDedupDataTupleMaskV2 ConfigureAndInitializeGlobalTPU ConfigureDistributedTPU
        ConfigureTPUEmbedding ConfigureTPUEmbeddingHost ConfigureTPUEmbeddingMemory ConnectTPUEmbeddingHosts
        ConvertToCooTensor ConvertToListOfSparseCoreCooTensors ConvertToSparseCoreCsrWrappedCooTensor CrossReplicaSum
        DynamicEnqueueTPUEmbeddingArbitraryTensorBatch DynamicEnqueueTPUEmbeddingRaggedTensorBatch
        EnqueueTPUEmbeddingArbitraryTensorBatch EnqueueTPUEmbeddingBatch EnqueueTPUEmbeddingIntegerBatch
        EnqueueTPUEmbeddingRaggedTensorBatch EnqueueTPUEmbeddingSparseBatch EnqueueTPUEmbeddingSparseTensorBatch
        ExecuteTPUEmbeddingPartitioner FinalizeTPUEmbedding FinalizeTPUEmbeddingV2
        GetMinibatchSplitsWithPhysicalReplica GetMinibatchesInCsrWithPhysicalReplica
        GetStatsFromListOfSparseCoreCooTensors GetTpuTaskId GlobalIterId IsTPUEmbeddingInitialized
        LoadAllTPUEmbeddingParameters LoadTPUEmbeddingADAMParameters LoadTPUEmbeddingAdadeltaParameters
        LoadTPUEmbeddingAdagradMomentumParameters LoadTPUEmbeddingAdagradParameters
        LoadTPUEmbeddingCenteredRMSPropParameters LoadTPUEmbeddingFTRLParameters
        LoadTPUEmbeddingFrequencyEstimatorParameters LoadTPUEmbeddingMDLAdagradLightParameters
        LoadTPUEmbeddingMomentumParameters LoadTPUEmbeddingProximalAdagradParameters
        LoadTPUEmbeddingProximalYogiParameters LoadTPUEmbeddingRMSPropParameters
        LoadTPUEmbeddingStochasticGradientDescentParameters MergeDedupData Prelinearize PrelinearizeTuple
        ReadVariableXlaSplitND RecvTPUEmbeddingActivations RetrieveAllTPUEmbeddingParameters
        RetrieveTPUEmbeddingADAMParameters RetrieveTPUEmbeddingAdadeltaParameters
        RetrieveTPUEmbeddingAdagradMomentumParameters RetrieveTPUEmbeddingAdagradParameters
        RetrieveTPUEmbeddingCenteredRMSPropParameters RetrieveTPUEmbeddingFTRLParameters
        RetrieveTPUEmbeddingFrequencyEstimatorParameters RetrieveTPUEmbeddingMDLAdagradLightParameters
        RetrieveTPUEmbeddingMomentumParameters RetrieveTPUEmbeddingProximalAdagradParameters
        RetrieveTPUEmbeddingProximalYogiParameters RetrieveTPUEmbeddingRMSPropParameters
        RetrieveTPUEmbeddingStochasticGradientDescentParameters SendTPUEmbeddingGradients ShutdownDistributedTPU
        ShutdownTPUSystem SortListOfSparseCoreCooTensors SplitDedupData StoreMinibatchStatisticsInFdo
        TPUAnnotateTensorsWithDynamicShape TPUCompilationResult TPUCompile TPUCompileSucceededAssert
        TPUCopyWithDynamicShape TPUDummyInput TPUEmbeddingActivations TPUExecute TPUExecuteAndUpdateVariables
        TPUOrdinalSelector TPUPartitionedCall TPUPartitionedInput TPUPartitionedInputV2 TPUPartitionedOutput
        TPUPartitionedOutputV2 TPUReplicateMetadata TPUReplicatedInput TPUReplicatedOutput TPUReshardVariables
        TPURoundRobin TpuHandleToProtoKey UpdateTaskIdAndGlobalCoreArray XlaBroadcastHelper XlaClusterOutput
        XlaConcatND XlaReplicaId XlaSharding XlaSparseActivationsUnstack XlaSparseCoreAdagrad
        XlaSparseCoreAdagradMomentum XlaSparseCoreAdam XlaSparseCoreFtrl XlaSparseCoreSgd XlaSparseDenseMatmul
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdagradAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdagradMomentumAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithAdamAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithFtrlAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcGradWithSgdAndCsrInput
        XlaSparseDenseMatmulCustomCombinerOnTcWithCsrInput XlaSparseDenseMatmulGradWithAdagradAndCsrInput
        XlaSparseDenseMatmulGradWithAdagradAndStaticBufferSize XlaSparseDenseMatmulGradWithAdagradMomentumAndCsrInput
        XlaSparseDenseMatmulGradWithAdagradMomentumAndStaticBufferSize XlaSparseDenseMatmulGradWithAdamAndCsrInput
        XlaSparseDenseMatmulGradWithAdamAndStaticBufferSize XlaSparseDenseMatmulGradWithCsrInput
        XlaSparseDenseMatmulGradWithFtrlAndCsrInput XlaSparseDenseMatmulGradWithFtrlAndStaticBufferSize
        XlaSparseDenseMatmulGradWithSgdAndCsrInput XlaSparseDenseMatmulGradWithSgdAndStaticBufferSize
        XlaSparseDenseMatmulWithCsrInput XlaSparseDenseMatmulWithStaticBufferSize XlaSparseGradientsStack XlaSplitND
        XlaSpmdFullToShardShape XlaSpmdShardToFullShape _ConfigureDistributedTPU
        _DisconnectHostFromDistributedTPUSystem _InitializeHostForDistributedTPU _SetGlobalTPUArray
        _ShutdownDistributedTPU _TPUCompileMlir _TPUReplicate _WaitForDistributedTPU
    """,
    "it reads data from files": """
        AnonymousMemoryCache CSVDataset CSVDatasetV2 CacheDataset CacheDatasetV2 DatasetToTFRecord DeleteMemoryCache
        DummyMemoryCache FixedLengthRecordDataset FixedLengthRecordDatasetV2 LMDBDataset MatchingFilesDataset
        SqlDataset TFRecordDataset TFRecordDatasetV2 TextLineDataset
    """,
    "it takes data to several devices": """
        AnonymousMultiDeviceIterator AnonymousMultiDeviceIteratorV3 AutoShardDataset DeleteMultiDeviceIterator
        ExperimentalAutoShardDataset MultiDeviceIterator MultiDeviceIteratorFromStringHandle
        MultiDeviceIteratorGetNextFromShard MultiDeviceIteratorInit MultiDeviceIteratorToStringHandle
    """,
    "it makes other operations while it runs": """
        AssertNextDataset AssertPrevDataset ChooseFastestBranchDataset ChooseFastestDataset DatasetFingerprint
        DatasetToGraph DatasetToGraphV2 FinalizeDataset ModelDataset NonSerializableDataset OptimizeDataset
        OptimizeDatasetV2 RewriteDataset
    """,
    "it gathers calls of several clients": """
        Batch BatchFunction Unbatch UnbatchGrad
    """,
    "it belongs to data sets of TensorFlow 1": """
        BatchDataset CompressElement ExperimentalAssertNextDataset ExperimentalCSVDataset
        ExperimentalChooseFastestDataset ExperimentalDatasetCardinality ExperimentalDatasetToTFRecord
        ExperimentalDenseToSparseBatchDataset ExperimentalDirectedInterleaveDataset ExperimentalGroupByReducerDataset
        ExperimentalGroupByWindowDataset ExperimentalIgnoreErrorsDataset ExperimentalIteratorGetDevice
        ExperimentalLMDBDataset ExperimentalMapAndBatchDataset ExperimentalMapDataset ExperimentalMatchingFilesDataset
        ExperimentalMaxIntraOpParallelismDataset ExperimentalNonSerializableDataset
        ExperimentalParallelInterleaveDataset ExperimentalParseExampleDataset ExperimentalPrivateThreadPoolDataset
        ExperimentalRandomDataset ExperimentalRebatchDataset ExperimentalScanDataset ExperimentalSlidingWindowDataset
        ExperimentalSqlDataset ExperimentalTakeWhileDataset ExperimentalUnbatchDataset ExperimentalUniqueDataset
        FilterByLastComponentDataset IteratorGetDevice UncompressElement
    """,
    "it belongs to an Estimator's boosted trees": """
        BoostedTreesAggregateStats BoostedTreesBucketize BoostedTreesCalculateBestFeatureSplit
        BoostedTreesCalculateBestFeatureSplitV2 BoostedTreesCalculateBestGainsPerFeature BoostedTreesCenterBias
        BoostedTreesCreateEnsemble BoostedTreesCreateQuantileStreamResource BoostedTreesDeserializeEnsemble
        BoostedTreesEnsembleResourceHandleOp BoostedTreesExampleDebugOutputs BoostedTreesFlushQuantileSummaries
        BoostedTreesGetEnsembleStates BoostedTreesMakeQuantileSummaries BoostedTreesMakeStatsSummary
        BoostedTreesPredict BoostedTreesQuantileStreamResourceAddSummaries
        BoostedTreesQuantileStreamResourceDeserialize BoostedTreesQuantileStreamResourceFlush
        BoostedTreesQuantileStreamResourceGetBucketBoundaries BoostedTreesQuantileStreamResourceHandleOp
        BoostedTreesSerializeEnsemble BoostedTreesSparseAggregateStats BoostedTreesSparseCalculateBestFeatureSplit
        BoostedTreesTrainingPredict BoostedTreesUpdateEnsemble BoostedTreesUpdateEnsembleV2
        IsBoostedTreesEnsembleInitialized IsBoostedTreesQuantileStreamResourceInitialized
    """,
    "it keeps threads, clocks or statistics of its own": """
        BytesProducedStatsDataset ExperimentalBytesProducedStatsDataset ExperimentalLatencyStatsDataset
        ExperimentalSetStatsAggregatorDataset ExperimentalStatsAggregatorHandle ExperimentalStatsAggregatorSummary
        ExperimentalThreadPoolDataset ExperimentalThreadPoolHandle LatencyStatsDataset MaxIntraOpParallelismDataset
        PrivateThreadPoolDataset SetStatsAggregatorDataset StatsAggregatorHandle StatsAggregatorHandleV2
        StatsAggregatorSetSummaryWriter StatsAggregatorSummary ThreadPoolDataset ThreadPoolHandle
    """,
    "it reads or writes files": """
        CalibrationStatisticsSaver CreateTRTResourceHandle DecodeProtoV2 DumpTensor EncodeProto
        FileSystemSetConfiguration FixedLengthRecordReader FixedLengthRecordReaderV2 GenerateVocabRemapping
        IdentityReader IdentityReaderV2 ImmutableConst InitializeTRTResource InitializeTableFromTextFile
        InitializeTableFromTextFileV2 LMDBReader LoadAndRemapMatrix MatchingFiles NegTrain ReadFile
        ReaderNumRecordsProduced ReaderNumRecordsProducedV2 ReaderNumWorkUnitsCompleted ReaderNumWorkUnitsCompletedV2
        ReaderRead ReaderReadUpTo ReaderReadUpToV2 ReaderReadV2 ReaderReset ReaderResetV2 ReaderRestoreState
        ReaderRestoreStateV2 ReaderSerializeState ReaderSerializeStateV2 RecordInput SerializeTRTResource Skipgram
        SnapshotDatasetReader SnapshotNestedDatasetReader TFRecordReader TFRecordReaderV2 TRTEngineOp TextLineReader
        TextLineReaderV2 WholeFileReader WholeFileReaderV2 WriteFile
    """,
    "it writes summaries": """
        CloseSummaryWriter CreateSummaryDbWriter CreateSummaryFileWriter FlushSummaryWriter ImportEvent SummaryWriter
        WriteAudioSummary WriteGraphSummary WriteHistogramSummary WriteImageSummary WriteRawProtoSummary
        WriteScalarSummary WriteSummary
    """,
    "it talks to other processes": """
        CollectiveAllToAllV2 CollectiveAllToAllV3 CollectiveAssignGroupV2 CollectiveBcastRecv CollectiveBcastRecvV2
        CollectiveBcastSend CollectiveBcastSendV2 CollectiveGather CollectiveGatherV2 CollectiveInitializeCommunicator
        CollectivePermute CollectiveReduce CollectiveReduceScatterV2 CollectiveReduceV2 CollectiveReduceV3 CopyToMesh
        CopyToMeshGrad DTensorAllGather DTensorAllReduce DTensorAllScatter DTensorAllToAll DTensorReduceScatter
        DTensorSetGlobalTPUArray DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3 DataServiceDatasetV4
        DeleteRpcFutureResource HorovodAllgather HorovodAllreduce HorovodAlltoall HorovodBroadcast
        HorovodBroadcastInplace HorovodBroadcastInplaceResource HorovodGroupedAllgather HorovodGroupedAllreduce
        HorovodGroupedReducescatter HorovodJoin HorovodLocalRank HorovodLocalSize HorovodProcessSetIncluded
        HorovodRank HorovodReducescatter HorovodSize InfeedDequeue InfeedDequeueTuple InfeedEnqueue
        InfeedEnqueuePrelinearizedBuffer InfeedEnqueueTuple NcclAllReduce NcclBroadcast NcclReduce OutfeedDequeue
        OutfeedDequeueTuple OutfeedDequeueTupleV2 OutfeedDequeueV2 OutfeedEnqueue OutfeedEnqueueTuple Recv
        RegisterDataset RegisterDatasetV2 Relayout RelayoutLike RemoteCall RpcCall RpcCheckStatus RpcClient
        RpcGetValue RpcServer RpcServerRegister RpcServerStart Send WorkerHeartbeat XlaAllReduce XlaRecv
        XlaRecvFromHost XlaRecvTPUEmbeddingActivations XlaRecvTPUEmbeddingActivationsV2
        XlaRecvTPUEmbeddingDeduplicationData XlaRecvTPUEmbeddingDeduplicationDataV2 XlaReduceScatter XlaSend
        XlaSendTPUEmbeddingGradients XlaSendTPUEmbeddingGradientsV2 XlaSendToHost _HostRecv _HostSend
        _NcclBroadcastRecv _NcclBroadcastSend _NcclReduceRecv _NcclReduceSend _Recv _Send _XlaRecvAtHost
        _XlaRecvAtHostV2 _XlaSendFromHost _XlaSendFromHostV2
    """,
    "it has no implementation on a processor": """
        Conv CustomAggregator GetCalibrationDataOp GetDeadline RiscAbs RiscAdd RiscBinaryArithmetic
        RiscBinaryComparison RiscBitcast RiscBroadcast RiscCast RiscCeil RiscCholesky RiscConcat RiscCondition
        RiscConv RiscCos RiscDiv RiscDot RiscExp RiscFft RiscFloor RiscGather RiscImag RiscIsFinite RiscLog
        RiscLogicalAnd RiscLogicalNot RiscLogicalOr RiscMax RiscMin RiscMul RiscNeg RiscPad RiscPool RiscPow
        RiscRandomUniform RiscReal RiscReduce RiscRem RiscReshape RiscReverse RiscScatter RiscShape RiscSign RiscSlice
        RiscSort RiscSqueeze RiscSub RiscTranspose RiscTriangularSolve RiscUnary RiscWhile StochasticCastToInt
        SyncDevice
    """,
    "it is a debugger's": """
        Copy CopyHost DebugGradientIdentity DebugGradientRefIdentity DebugIdentity DebugIdentityV2 DebugIdentityV3
        DebugNanCount DebugNumericSummary DebugNumericSummaryV2 IteratorGetModelProto
    """,
    "it saves or restores files": """
        DTensorRestoreV2 DistributedSave ListSnapshotChunksDataset LoadDataset MergeV2Checkpoints Restore RestoreSlice
        RestoreV2 Save SaveDataset SaveDatasetV2 SaveSlices SaveV2 SnapshotChunkDataset SnapshotDataset
        SnapshotDatasetV2
    """,
    "it brings in code that cannot be looked at": """
        DatasetFromGraph DeserializeIterator IteratorFromStringHandle IteratorFromStringHandleV2 MlirPassthroughOp
        SerializeIterator TfLiteSubgraphExecute XlaCallModule XlaCustomCall XlaCustomCallV2 XlaHostCompute XlaLaunch
        XlaLaunchV2 _XlaAotOnlyVarHandleOp _XlaCompile _XlaCompileMlirPlaceholderProgramKey _XlaHostComputeMlir
        _XlaRun
    """,
    "it keeps tensors beyond the step": """
        DeleteSessionTensor GetSessionHandle GetSessionHandleV2 GetSessionTensor IsResourceHandleRefCounting
        IteratorToStringHandle MakeWeakResourceHandle
    """,
    "it runs Python": """
        EagerPyFunc PyFunc PyFuncStateless
    """,
    "TensorFlow makes it itself while it runs a graph": """
        _Arg _ArrayToList _CopyFromGpuToHost _CopyFromHostToGpu _DeviceArg _DeviceRetval _EagerConst _FusedBatchNormEx
        _FusedBatchNormGradEx _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative _FusedMatMul _FusedQuantizedConv2D
        _FusedQuantizedDepthwiseConv2D _HostCast _If _ListToArray _MklAdd _MklAddN _MklAddV2 _MklAvgPool _MklAvgPool3D
        _MklAvgPool3DGrad _MklAvgPoolGrad _MklBatchMatMul _MklBatchMatMulV2 _MklConcat _MklConcatV2
        _MklConjugateTranspose _MklConv2D _MklConv2DBackpropFilter _MklConv2DBackpropFilterWithBias
        _MklConv2DBackpropInput _MklConv2DWithBias _MklConv3D _MklConv3DBackpropFilterV2 _MklConv3DBackpropInputV2
        _MklDepthwiseConv2dNative _MklDepthwiseConv2dNativeBackpropFilter _MklDepthwiseConv2dNativeBackpropInput
        _MklDequantize _MklEinsum _MklElu _MklEluGrad _MklFusedBatchMatMulV2 _MklFusedBatchNorm _MklFusedBatchNormEx
        _MklFusedBatchNormGrad _MklFusedBatchNormGradV2 _MklFusedBatchNormGradV3 _MklFusedBatchNormV2
        _MklFusedBatchNormV3 _MklFusedConv2D _MklFusedDepthwiseConv2dNative _MklFusedInstanceNorm _MklFusedMatMul
        _MklFusedMish _MklIdentity _MklInputConversion _MklLRN _MklLRNGrad _MklLayerNorm _MklLeakyRelu
        _MklLeakyReluGrad _MklMatMul _MklMaxPool _MklMaxPool3D _MklMaxPool3DGrad _MklMaxPoolGrad _MklMaximum _MklMul
        _MklNativeAvgPool _MklNativeAvgPool3D _MklNativeAvgPool3DGrad _MklNativeAvgPoolGrad _MklNativeConv2D
        _MklNativeConv2DBackpropFilter _MklNativeConv2DBackpropFilterWithBias _MklNativeConv2DBackpropInput
        _MklNativeConv2DWithBias _MklNativeConv3D _MklNativeConv3DBackpropFilterV2 _MklNativeConv3DBackpropInputV2
        _MklNativeDepthwiseConv2dNative _MklNativeDepthwiseConv2dNativeBackpropFilter
        _MklNativeDepthwiseConv2dNativeBackpropInput _MklNativeFusedBatchNorm _MklNativeFusedBatchNormEx
        _MklNativeFusedBatchNormGrad _MklNativeFusedBatchNormGradV2 _MklNativeFusedBatchNormGradV3
        _MklNativeFusedBatchNormV2 _MklNativeFusedBatchNormV3 _MklNativeFusedConv2D _MklNativeFusedConv3D
        _MklNativeFusedDepthwiseConv2dNative _MklNativeFusedMatMul _MklNativeMaxPool _MklNativeMaxPool3D
        _MklNativeMaxPool3DGrad _MklNativeMaxPoolGrad _MklNativePadWithConv2D _MklNativePadWithFusedConv2D
        _MklNativeSparseMatrixMatMul _MklPadWithConv2D _MklPadWithFusedConv2D _MklQuantizeV2 _MklQuantizedAvgPool
        _MklQuantizedConcatV2 _MklQuantizedConv2D _MklQuantizedConv2DAndRelu _MklQuantizedConv2DAndReluAndRequantize
        _MklQuantizedConv2DAndRequantize _MklQuantizedConv2DPerChannel _MklQuantizedConv2DWithBias
        _MklQuantizedConv2DWithBiasAndRelu _MklQuantizedConv2DWithBiasAndReluAndRequantize
        _MklQuantizedConv2DWithBiasAndRequantize _MklQuantizedConv2DWithBiasSignedSumAndReluAndRequantize
        _MklQuantizedConv2DWithBiasSumAndRelu _MklQuantizedConv2DWithBiasSumAndReluAndRequantize
        _MklQuantizedDepthwiseConv2D _MklQuantizedDepthwiseConv2DWithBias _MklQuantizedDepthwiseConv2DWithBiasAndRelu
        _MklQuantizedDepthwiseConv2DWithBiasAndReluAndRequantize _MklQuantizedMatMulWithBias
        _MklQuantizedMatMulWithBiasAndDequantize _MklQuantizedMatMulWithBiasAndRelu
        _MklQuantizedMatMulWithBiasAndReluAndRequantize _MklQuantizedMatMulWithBiasAndRequantize _MklQuantizedMaxPool
        _MklRelu _MklRelu6 _MklRelu6Grad _MklReluGrad _MklReshape _MklSlice _MklSoftmax _MklSquaredDifference _MklSub
        _MklSwish _MklTanh _MklTanhGrad _MklToTf _MklTranspose _ParallelConcatStart _ParallelConcatUpdate
        _QuantizedMatMul _QuantizedMaxPool3D _ReadVariablesOp _Retval _ScopedAllocator _ScopedAllocatorConcat
        _ScopedAllocatorSplit _SwitchN _TensorToHashBucketFast _UnaryOpsComposition _VarHandlesOp _While _XlaMerge
        __MklDummyConv2DBackpropFilterWithBias __MklDummyConv2DWithBias __MklDummyPadWithConv2D
        __MklDummyPadWithFusedConv2D
    """,
}

OPERATIONS: Mapping[str, Mapping[str, Rule]] = {
    name: {attribute: ATTRIBUTES[attribute] for attribute in attributes.split()}
    for names in ALLOWED.values()
    for name, attributes in re.findall(r"([^\s()]+)(?:\(([^)]*)\))?", names)
}
REASONS: Mapping[str, str] = {name: reason for reason, names in REFUSED.items() for name in names.split()}
# What may stand beside a function's name: attributes that a call of it has, which TensorFlow copies there.
CALL: Mapping[str, Rule] = OPERATIONS["StatefulPartitionedCall"]
