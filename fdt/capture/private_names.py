"""Lists the names of TensorFlow and Keras that are not public and that capturing a step needs, and looks for them at the start.

These names may go with any release. Asked for here, before any hook is in place, a name that has gone is said with the version;
else a script would fail amid its training, or train without its hooks.
"""

import functools
import importlib
from collections.abc import Iterable, Mapping

from fdt.errors import UnsupportedError

_DATA = "tensorflow.python.data.ops"
_EAGER = "tensorflow.python.eager"
_FRAMEWORK = "tensorflow.python.framework"
_AUTOGRAPH = "tensorflow.python.autograph"
_OPS = "tensorflow.python.ops"

# Attributes by module; "Class.attribute" for what is replaced in a class.
TENSORFLOW: Mapping[str, str] = {
    "tensorflow.python.tf2": "enable disable enabled",
    "tensorflow.python.pywrap_tfe": "TFE_Py_TapeSetIsEmpty",
    "tensorflow.python.client.session": "BaseSession BaseSession._run BaseSession._do_run "
    "BaseSession._make_callable_from_options",
    "tensorflow.python.distribute.distribute_lib": "StrategyBase StrategyBase.scope",
    "tensorflow.python.training.optimizer": "Optimizer Optimizer.compute_gradients Optimizer.apply_gradients",
    "tensorflow.python.util.deprecation": "silence",
    f"{_AUTOGRAPH}.core.ag_ctx": "ControlStatusCtx Status",
    f"{_AUTOGRAPH}.core.converter": "ConversionOptions",
    f"{_AUTOGRAPH}.core.function_wrappers": "FunctionScope",
    f"{_AUTOGRAPH}.impl.api": "do_not_convert _TRANSPILER",
    f"{_AUTOGRAPH}.operators.variables": "Undefined UndefinedReturnValue",
    f"{_DATA}.batch_op": "_BatchDataset _ParallelBatchDataset",
    f"{_DATA}.cache_op": "CacheDataset",
    f"{_DATA}.dataset_ops": "_OptionsDataset _VariantDataset",
    f"{_DATA}.filter_op": "_FilterDataset",
    f"{_DATA}.flat_map_op": "_FlatMapDataset",
    f"{_DATA}.from_tensor_slices_op": "_TensorSliceDataset",
    f"{_DATA}.from_tensors_op": "_TensorDataset",
    f"{_DATA}.interleave_op": "_InterleaveDataset _ParallelInterleaveDataset",
    f"{_DATA}.iterator_ops": "IteratorSpec IteratorSpec._to_components OwnedIterator OwnedIterator.__init__ "
    "OwnedIterator._next_internal OwnedIterator._restore_from_tensors OwnedIterator._serialize_to_tensors "
    "OwnedIterator.get_next_as_optional",
    f"{_DATA}.map_op": "_MapDataset _ParallelMapDataset",
    f"{_DATA}.padded_batch_op": "_PaddedBatchDataset",
    f"{_DATA}.prefetch_op": "_PrefetchDataset",
    f"{_DATA}.range_op": "_RangeDataset",
    f"{_DATA}.readers": "FixedLengthRecordDatasetV2 ParallelInterleaveDataset TextLineDatasetV2 TFRecordDatasetV2",
    f"{_DATA}.repeat_op": "_RepeatDataset",
    f"{_DATA}.shard_op": "_ShardDataset",
    f"{_DATA}.shuffle_op": "_ShuffleDataset",
    f"{_DATA}.skip_op": "_SkipDataset",
    f"{_DATA}.take_op": "_TakeDataset",
    f"{_DATA}.zip_op": "_ZipDataset",
    "tensorflow.python.data.experimental.ops.readers": "CsvDatasetV2",
    "tensorflow.python.data.util.structure": "from_compatible_tensor_list",
    f"{_EAGER}.context": "context eager_mode global_seed internal_operation_seed Context "
    "Context._set_global_seed Context.clear_kernel_cache",
    f"{_EAGER}.execute": "execute",
    f"{_EAGER}.polymorphic_function.autograph_util": "py_func_from_autograph",
    f"{_EAGER}.polymorphic_function.concrete_function": "ConcreteFunction ConcreteFunction._call_flat",
    f"{_EAGER}.polymorphic_function.polymorphic_function": "Function Function.__call__ "
    "_FrequentTracingDetectorManager _FrequentTracingDetectorManager.called_with_tracing",
    f"{_FRAMEWORK}.composite_tensor": "CompositeTensor",
    f"{_FRAMEWORK}.config": "is_op_determinism_enabled",
    f"{_FRAMEWORK}.func_graph": "FuncGraph func_graph_from_py_func",
    f"{_FRAMEWORK}.function_def_to_graph": "function_def_to_graph function_def_to_graph_def",
    f"{_FRAMEWORK}.op_def_registry": "get",
    f"{_FRAMEWORK}.ops": "EagerTensor SymbolicTensor get_stats_for_node_def",
    f"{_FRAMEWORK}.random_seed": "DEFAULT_GRAPH_SEED get_seed",
    f"{_FRAMEWORK}.tensor_shape": "_TENSORSHAPE_V2_OVERRIDE",
    f"{_FRAMEWORK}.tensor_util": "MakeNdarray",
    f"{_OPS}.control_flow_v2_toggles": "disable_control_flow_v2",
    f"{_OPS}.gen_logging_ops": "print_v2",
    f"{_OPS}.gen_random_ops": "",
    f"{_OPS}.gen_stateless_random_ops_v2": "stateless_random_normal_v2 stateless_random_uniform_v2",
    f"{_OPS}.gen_summary_ops": "write_summary flush_summary_writer",
    f"{_OPS}.gradients_util": "_GradientsHelper",
    f"{_OPS}.handle_data_util": "copy_handle_data create_handle_data get_resource_handle_data set_handle_data",
    f"{_OPS}.ref_variable": "default_variable_creator",
    f"{_OPS}.resource_variable_ops": "BaseResourceVariable ResourceVariable",
    f"{_OPS}.resource_variables_toggle": "resource_variables_enabled _DEFAULT_USE_RESOURCE",
    f"{_OPS}.summary_ops_v2": "should_record_summaries",
    f"{_OPS}.variables": "default_variable_creator_v2",
}
KERAS: Mapping[str, str] = {
    "keras.src.backend.tensorflow.nn": "_get_logits",
    "keras.src.backend.tensorflow.trainer": (
        "TFEpochIterator TensorFlowTrainer TensorFlowTrainer.__init__ TensorFlowTrainer._maybe_symbolic_build "
        "TensorFlowTrainer.fit TensorFlowTrainer.make_train_function TensorFlowTrainer.train_on_batch "
        "TensorFlowTrainer.make_test_function TensorFlowTrainer.evaluate"
    ),
    "keras.src.metrics.metric": "Metric",
    "keras.src.optimizers.base_optimizer": "BaseOptimizer BaseOptimizer._get_current_learning_rate",
    "keras.src.optimizers.loss_scale_optimizer": "LossScaleOptimizer",
    "keras.src.random.seed_generator": "SeedGenerator SeedGenerator.next",
    "keras.src.trainers.compile_utils": "CompileMetrics",
    "keras.src.trainers.data_adapters.array_data_adapter": "ArrayDataAdapter",
    "keras.src.trainers.data_adapters.array_slicing": "convert_to_sliceable train_validation_split",
    "keras.src.trainers.data_adapters.data_adapter_utils": "unpack_x_y_sample_weight",
    "keras.src.trainers.data_adapters.tf_dataset_adapter": "TFDatasetAdapter",
    "keras.src.trainers.trainer": "model_supports_jit",
    "keras.src.utils.python_utils": "is_default",
}
KERAS_2: Mapping[str, str] = {
    "tf_keras.src.backend": "_get_logits",
    "tf_keras.src.engine.data_adapter": (
        "get_data_handler train_validation_split unpack_x_y_sample_weight TensorLikeDataAdapter.slice_inputs "
        "DataHandler.catch_stop_iteration"
    ),
    "tf_keras.src.engine.training": "Model Model.fit Model.make_train_function Model.train_on_batch",
    "tf_keras.src.layers.normalization.batch_normalization": "BatchNormalizationBase BatchNormalizationBase.call",
    "tf_keras.src.mixed_precision.loss_scale_optimizer": "LossScaleOptimizer LossScaleOptimizerV3",
    "tf_keras.src.optimizers.legacy.optimizer_v2": "OptimizerV2 OptimizerV2._decayed_lr",
    "tf_keras.src.optimizers.optimizer": "Optimizer _BaseOptimizer _BaseOptimizer.learning_rate",
    "tf_keras.src.utils.generic_utils": "is_default",
    "tf_keras.src.utils.metrics_utils": "update_state_wrapper result_wrapper",
}
# What the matrix of tests has (`make test-matrix`).
_TRIED = {"tensorflow": "2.16 to 2.21", "keras": "3.3 to 3.15", "tf_keras": "2.16 to 2.21"}


def missing(names: Mapping[str, str]) -> Iterable[str]:
    """Yields each name that is gone, such as "module.Class.attribute"."""
    for module, attributes in names.items():
        try:
            imported = importlib.import_module(module)
        except ImportError:
            yield module
            continue
        for attribute in attributes.split():
            try:
                functools.reduce(getattr, attribute.split("."), imported)
            except AttributeError:
                yield f"{module}.{attribute}"


def require(package: str, names: Mapping[str, str]) -> None:
    """Refuses a version of a package that lacks one of the names.

    Args:
        package: "tensorflow", "keras" or "tf_keras", which is imported.
        names: Its names.

    Raises:
        UnsupportedError: A name is gone.
    """
    gone = list(missing(names))
    if gone:
        version = getattr(importlib.import_module(package), "__version__", "unknown")
        raise UnsupportedError(
            f"{package} {version} has no {', '.join(gone)}, which fdt needs to capture a training step. It was tried with "
            f"{package} {_TRIED[package]}: install one of these, or a later version of fdt"
        )
