"""Which cases run on how many workers: those of `make test`, and, called more, what `make test-all` runs besides.

A case costs its graphs, at the client and on each worker. So `make test` has one case for each mechanism: each way into and
around a training step, each form of data, each thing that a step keeps; with one number of workers (one where the client
alone differs); and again with Keras 2 or asynchronous workers where other code of ours takes part. What differs in the
arithmetic of the step alone is more: its operations are divided over up to 5 simulated workers by `tests/division`.
A case is in the lists called more if another one, which is not, fails wherever it would fail.
"""

import os

# Whether `make test-all` runs, or `make test`.
ALL = bool(os.environ.get("FDT_ALL_TESTS"))

_BOTH = "sgd_momentum adam last_batch_3 evaluate_predict".split()
# What differs at the client alone, or in each worker by itself.
_ONE_WORKER = (
    # The loop: callbacks, validation, what is printed.
    "validation_freq_initial_epoch verbose_1_full_bar checkpoint rate_per_batch batch_logs weights_set_between_epochs "
    "fits_in_a_callback stop_in_epoch keras_callbacks interrupted_and_resumed fits_without_a_step fit_summaries "
    "step_that_a_callback_sets_up tensors_float64_default_batch jit_compiled "
    # Steps of their own, and optimizers: what they keep.
    "accumulation slots_set_in_build subclassed_lazy custom_train_step mean_teacher loop_several_steps "
    "session_clipped_decayed_averaged session_two_steps "
    # After the loop.
    "save_load sample_weight second_fit_other_data arrays_changed_in_place frozen_recompiled two_models "
    # Data: where they come from, and how many there are.
    "data_dataset_unknown_length data_dataset_ran_out data_dataset_mapped data_steps_per_execution data_pydataset "
    "data_pandas numbers_of_tf_random data_dataset_whose_rows_are_read "
    # Loops of the script's own.
    "loop_signature loop_strategy loop_checkpoint loop_in_graph loop_drawn_in_python loop_printed loop_graphs "
    "loop_over_data loop_over_places loop_variables_in_operations loop_inner_functions "
    # Loops without tf.function.
    "eager_helpers eager_lazy_model eager_arrays_after_the_build eager_attached_to_tensors eager_by_hand "
    "eager_calls_a_function_that_makes_weights eager_metrics_of_each_epoch eager_skips_bad_batches eager_accumulated "
    "eager_nested_tapes eager_random eager_probabilities eager_beside_a_pipeline_that_draws "
    "eager_objects_of_several_sizes eager_random_with_seeds loop_random_by_size "
    "loop_random_in_functions eager_random_in_functions "
    # Sessions of TensorFlow 1.
    "session_changed_between_steps session_monitored session_data_set session_summaries session_update_ops "
    "session_fetches_what_it_changes session_feeds_variables"
).split()
_MORE_ON_ONE_WORKER = (
    "data_on_batch_gan loop_in_turn data_dataset_under_a_strategy eager_wide_arrays validation_split "
    "steps_per_epoch early_stopping weights_per_batch class_weight history_object layer_summaries "
    "data_dataset_endless data_dataset_shuffled_and_looked_at data_on_batch_frozen data_on_batch_in_turn "
    "loop_accumulated loop_summaries session_by_hand"
).split()
_TWO_WORKERS = (
    # What each worker has of a batch, and what is made of it.
    "mixed_precision stateful_lstm two_inputs_two_outputs mean_read_by_the_next_step metric_that_overwrites "
    # Optimizers: what comes after the exchange.
    "global_clipnorm sparse_embedding "
    # Data: what is cut.
    "data_dataset_shuffled data_generator data_padded data_sparse data_strings data_ragged data_on_batch "
    # Loops of the script's own.
    "loop_two_functions loop_metrics loop_reads_sizes "
    # Loops without tf.function.
    "eager_tutorial "
    # Sessions of TensorFlow 1.
    "session_feed session_of_one_row session_embedding"
).split()
_MORE_ON_TWO_WORKERS = (
    "weighted_metrics gan conv shared_layers last_batch_1 reduction_sum l2 second_fit verbose_1 rate_scheduler "
    "weights_set_by_hand recompiled data_dataset_batches_mapped loop_gan loop_iterator loop_types eager_gan "
    "eager_own_optimizer fits_between_batches validation_data verbose_2 reduce_on_plateau shuffle_off "
    "rate_set_by_hand clipvalue adamw data_dataset_class_weight data_dataset_python data_generator_finite "
    "data_pydataset_threads loop_clipped loop_penalty eager_class session_of_means_divided session_of_rows_that_meet "
    "session_of_unknown_ranks"
).split()
# Of a batch with fewer rows than there are workers some have none.
_FOUR_WORKERS = "last_batch_2 batch_smaller_than_workers batch_of_one".split()
_MORE_ON_FOUR_WORKERS = (
    "sample_weight save_load conv class_weight custom_train_step_rows layer_of_rows_together gradient_by_input "
    "mean_read_by_the_next_step metric_that_overwrites masked_gru data_ragged loop_metrics loop_keeps_rows "
    "loop_in_turn session_embedding two_inputs_two_outputs last_batch_1 reduction_sum l2 second_fit last_batch_4 "
    "last_batch_1_adam reduction_sum_sample_weight mean_with_sample_weight l2_reduction_sum activity_regularizer "
    "add_loss lambda_loss add_loss_sum add_loss_rows loss_summed_by_hand custom_train_step_sum "
    "custom_train_step_returns loss_divided_by_a_mask custom_train_step_masked loss_root_of_mean loss_overlap "
    "custom_train_step_overlap activity_regularizer_of_means metric_of_two_models loss_contrastive "
    "loss_contrastive_sum custom_train_step_contrastive loss_over_picked_rows custom_train_step_picked "
    "loss_unexplained loss_of_sum_and_mean loop_contrastive one_size_written_out one_size_asked_for data_of_two_sizes "
    "loss_in_branch layer_keeps_a_sum metric_of_a_batch loss_per_class learned_positions custom_loss_class "
    "custom_metric auc_precision_recall clipnorm schedule ema loss_scale masked_pooling masked_loss "
    "custom_train_step_uneven two_optimizers data_dataset loop_returns loop_sum loop_by_hand loop_static "
    "loop_losses_of_layers"
).split()
_RANDOM = "dropout batch_normalization loop_random".split()
# One asynchronous worker meets no delay: what it does is plain Keras.
_ASYNCHRONOUS = (
    "sgd_momentum adam last_batch_3 weights_set_between_epochs global_clipnorm loss_scale sparse_embedding "
    "custom_train_step gan batch_normalization data_ragged data_on_batch_gan loop_in_turn loop_random eager_gan "
    "session_two_steps"
).split()
_MORE_ASYNCHRONOUS = (
    "batch_logs frozen_recompiled mean_teacher data_dataset_shuffled eager_tutorial session_feed validation_split "
    "fits_without_a_step accumulation schedule ema masked_gru dropout data_generator data_strings loop_metrics "
    "loop_gan loop_by_hand loop_checkpoint loop_over_data session_clipped_decayed_averaged session_embedding conv "
    "sample_weight evaluate_predict second_fit early_stopping two_models auc_precision_recall loop_two_functions "
    "loop_types loop_printed loop_graphs eager_by_hand eager_random session_data_set session_by_hand class_weight "
    "reduction_sum l2 rate_scheduler rate_per_batch recompiled clipnorm clipvalue adamw subclassed_lazy "
    "data_dataset_mapped data_dataset_unknown_length data_pydataset data_padded data_sparse data_on_batch "
    "loop_returns loop_clipped loop_sum loop_signature loop_penalty loop_static loop_iterator loop_summaries "
    "eager_class eager_helpers eager_lazy_model session_changed_between_steps session_monitored"
).split()

# What two of them do is counted; its values depend on chance.
_COUNTED = "adam data_dataset_shuffled loop_two_functions".split()
_MORE_COUNTED = (
    "gan session_feed data_generator data_on_batch loop_gan loop_by_hand loop_random custom_train_step mean_teacher "
    "data_pydataset data_ragged loop_metrics loop_returns loop_sum loop_in_turn loop_checkpoint loop_static"
).split()

# The same scripts with Keras 2: one for each of its hooks, and what it alone has. Others use what it has not, or repeat.
_KERAS_2 = (
    "sgd_momentum evaluate_predict save_load verbose_1_full_bar fits_without_a_step step_that_reads_the_counter "
    "sparse_embedding custom_train_step data_steps_per_execution data_generator data_on_batch_gan older_adam "
    "older_loss_scale newer_loss_scale branching_layer clipping_train_step added_metric sequence_with_threads "
    "session_layers"
).split()
_MORE_OF_KERAS_2 = (
    "sample_weight stateful_lstm frozen_recompiled batch_logs interrupted_and_resumed data_dataset_shuffled "
    "loop_checkpoint auc_precision_recall validation_split rate_per_batch fits_in_a_callback stop_in_epoch "
    "layer_summaries data_dataset_unknown_length data_pydataset data_ragged loop_gan older_momentum "
    "numbers_of_tf_random adam conv class_weight reduction_sum l2 add_loss_sum custom_train_step_masked "
    "two_inputs_two_outputs custom_metric metric_of_a_batch masked_gru second_fit recompiled verbose_1 early_stopping "
    "steps_per_epoch weights_per_batch weighted_metrics subclassed_lazy data_dataset_mapped data_strings loop_metrics "
    "older_schedule last_batch_3 reduction_sum_sample_weight loss_summed_by_hand custom_train_step_sum "
    "custom_train_step_rows custom_train_step_returns loss_divided_by_a_mask loss_root_of_mean loss_overlap "
    "custom_train_step_overlap activity_regularizer_of_means metric_of_two_models loss_contrastive "
    "loss_contrastive_sum custom_train_step_contrastive loss_over_picked_rows loss_unexplained one_size_written_out "
    "data_of_two_sizes layer_of_rows_together layer_keeps_a_sum loss_per_class activity_regularizer add_loss "
    "custom_loss_class masked_pooling masked_loss two_models checkpoint rate_scheduler jit_compiled global_clipnorm "
    "adamw schedule ema two_optimizers data_dataset_endless data_dataset_class_weight "
    "data_dataset_shuffled_and_looked_at data_dataset_under_a_strategy data_pandas loop_clipped loop_accumulated "
    "loop_signature loop_over_data loop_printed loop_inner_functions"
).split()
_KERAS_2_ASYNCHRONOUS = "sgd_momentum sparse_embedding older_loss_scale".split()
_MORE_OF_KERAS_2_ASYNCHRONOUS = (
    "custom_train_step batch_logs batch_normalization data_generator older_momentum adam sample_weight "
    "weights_set_between_epochs recompiled masked_gru loop_metrics older_adam conv reduction_sum l2 early_stopping "
    "rate_per_batch global_clipnorm adamw schedule ema subclassed_lazy data_dataset_shuffled data_ragged "
    "data_on_batch_gan loop_two_functions loop_by_hand older_schedule newer_loss_scale"
).split()


def _chosen(names: list[str], more: list[str]) -> list[str]:
    return names + more if ALL else names


EXACT = [
    *((name, 1) for name in _chosen(_ONE_WORKER, _MORE_ON_ONE_WORKER)),
    *((name, 2) for name in _chosen(_BOTH + _TWO_WORKERS, _ONE_WORKER + _MORE_ON_ONE_WORKER + _MORE_ON_TWO_WORKERS)),
    *((name, 4) for name in _chosen(_FOUR_WORKERS, _BOTH + _MORE_ON_FOUR_WORKERS)),
    *((name, workers) for name in _RANDOM for workers in ((1, 2, 4) if ALL else (2,))),
]
ASYNCHRONOUS = _chosen(_ASYNCHRONOUS, _MORE_ASYNCHRONOUS)
COUNTED = _chosen(_COUNTED, _MORE_COUNTED)
KERAS_2 = _chosen(_KERAS_2, _MORE_OF_KERAS_2)
KERAS_2_ASYNCHRONOUS = _chosen(_KERAS_2_ASYNCHRONOUS, _MORE_OF_KERAS_2_ASYNCHRONOUS)
# Whether chosen or not.
LISTED = {
    *_BOTH, *_ONE_WORKER, *_MORE_ON_ONE_WORKER, *_TWO_WORKERS, *_MORE_ON_TWO_WORKERS, *_FOUR_WORKERS,
    *_MORE_ON_FOUR_WORKERS, *_RANDOM, *_ASYNCHRONOUS, *_MORE_ASYNCHRONOUS, *_KERAS_2, *_MORE_OF_KERAS_2,
}  # fmt: skip
