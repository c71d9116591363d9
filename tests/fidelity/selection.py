"""Which cases run on how many workers: those of `make test`, and, called more, what `make test-all` runs besides.

A case costs its graphs, at the client and on each worker. So `make test` has one case for each mechanism: each way into and
around a training step, each form of data, each thing that a step keeps; with one number of workers (one where the client
alone differs); and again with Keras 2 or asynchronous workers where other code of ours takes part. What differs in the
arithmetic of the step alone is more: its operations are divided over up to 5 simulated workers by `tests/division`.
"""

import os

# Whether `make test-all` runs, or `make test`.
ALL = bool(os.environ.get("FDT_ALL_TESTS"))

_BOTH = ("sgd_momentum adam conv last_batch_3 sample_weight class_weight evaluate_predict save_load").split()
# What differs at the client alone.
_ONE_WORKER = (
    # The loop: callbacks, validation, what is printed.
    "validation_freq_initial_epoch steps_per_epoch verbose_1_full_bar early_stopping checkpoint rate_per_batch "
    "fits_in_a_callback stop_in_epoch keras_callbacks interrupted_and_resumed fits_without_a_step fit_summaries "
    "layer_summaries step_that_a_callback_sets_up "
    # After the loop.
    "second_fit_other_data arrays_changed_in_place frozen_recompiled two_models history_object "
    # Loops of the script's own.
    "loop_signature loop_strategy loop_checkpoint loop_in_graph loop_summaries loop_drawn_in_python loop_printed "
    "loop_graphs loop_over_data loop_over_places "
    # Loops without tf.function.
    "eager_helpers eager_lazy_model eager_arrays_after_the_build eager_wide_arrays eager_attached_to_tensors "
    # Sessions of TensorFlow 1.
    "session_changed_between_steps session_monitored session_data_set session_summaries session_fetches_what_it_changes"
).split()
_TWO_WORKERS = (
    # The loop: callbacks, validation, what is printed.
    "validation_split batch_logs weights_set_between_epochs weights_per_batch tensors_float64_default_batch "
    "weighted_metrics jit_compiled mixed_precision stateful_lstm "
    # After the loop.
    "shared_layers "
    # Optimizers: what comes after the exchange.
    "global_clipnorm accumulation slots_set_in_build sparse_embedding subclassed_lazy custom_train_step gan "
    "mean_teacher "
    # Data.
    "data_dataset_shuffled data_dataset_endless data_dataset_unknown_length data_dataset_ran_out "
    "data_dataset_shuffled_and_looked_at data_dataset_mapped data_dataset_under_a_strategy data_steps_per_execution "
    "data_generator data_pydataset data_pandas numbers_of_tf_random data_padded data_sparse data_strings data_on_batch "
    "data_on_batch_gan data_on_batch_in_turn data_on_batch_frozen "
    # Loops of the script's own.
    "loop_gan loop_two_functions loop_accumulated loop_several_steps loop_in_turn loop_variables_in_operations "
    # Loops without tf.function.
    "eager_tutorial eager_by_hand eager_skips_bad_batches eager_gan eager_accumulated eager_nested_tapes eager_random "
    # Sessions of TensorFlow 1.
    "session_feed session_update_ops session_clipped_decayed_averaged session_two_steps session_by_hand "
    "session_of_one_row"
).split()
_MORE_ON_TWO_WORKERS = (
    "last_batch_1 reduction_sum l2 second_fit verbose_1 rate_scheduler weights_set_by_hand recompiled "
    "data_dataset_batches_mapped loop_iterator loop_types eager_own_optimizer fits_between_batches validation_data "
    "verbose_2 reduce_on_plateau shuffle_off rate_set_by_hand clipvalue adamw data_dataset_class_weight "
    "data_dataset_python data_generator_finite data_pydataset_threads loop_clipped loop_penalty eager_class "
    "session_of_means_divided session_of_rows_that_meet session_of_unknown_ranks"
).split()
_FOUR_WORKERS = (
    "last_batch_2 batch_smaller_than_workers batch_of_one custom_train_step_rows layer_of_rows_together "
    "gradient_by_input mean_read_by_the_next_step metric_that_overwrites masked_gru data_ragged loop_metrics "
    "loop_keeps_rows loop_in_turn session_embedding two_inputs_two_outputs"
).split()
_MORE_ON_FOUR_WORKERS = (
    "last_batch_1 reduction_sum l2 second_fit last_batch_4 last_batch_1_adam reduction_sum_sample_weight "
    "mean_with_sample_weight l2_reduction_sum activity_regularizer add_loss lambda_loss add_loss_sum add_loss_rows "
    "loss_summed_by_hand custom_train_step_sum custom_train_step_returns loss_divided_by_a_mask "
    "custom_train_step_masked loss_root_of_mean loss_overlap custom_train_step_overlap activity_regularizer_of_means "
    "metric_of_two_models loss_contrastive loss_contrastive_sum custom_train_step_contrastive loss_over_picked_rows "
    "custom_train_step_picked loss_unexplained loss_of_sum_and_mean loop_contrastive one_size_written_out "
    "one_size_asked_for data_of_two_sizes loss_in_branch layer_keeps_a_sum metric_of_a_batch loss_per_class "
    "learned_positions custom_loss_class custom_metric auc_precision_recall clipnorm schedule ema loss_scale "
    "masked_pooling masked_loss custom_train_step_uneven two_optimizers data_dataset loop_returns loop_sum loop_by_hand "
    "loop_static loop_losses_of_layers"
).split()
_RANDOM = "dropout batch_normalization loop_random".split()
# One asynchronous worker meets no delay: what it does is plain Keras.
_ASYNCHRONOUS = (
    "sgd_momentum adam last_batch_3 validation_split batch_logs weights_set_between_epochs fits_without_a_step "
    "frozen_recompiled global_clipnorm accumulation schedule ema loss_scale sparse_embedding custom_train_step gan "
    "mean_teacher masked_gru dropout batch_normalization data_dataset_shuffled data_generator data_ragged data_strings "
    "data_on_batch_gan loop_metrics loop_gan loop_in_turn loop_by_hand loop_checkpoint loop_random loop_over_data "
    "eager_tutorial eager_gan session_feed session_clipped_decayed_averaged session_two_steps session_embedding"
).split()
_MORE_ASYNCHRONOUS = (
    "conv sample_weight evaluate_predict second_fit early_stopping two_models auc_precision_recall loop_two_functions "
    "loop_types loop_printed loop_graphs eager_by_hand eager_random session_data_set session_by_hand class_weight "
    "reduction_sum l2 rate_scheduler rate_per_batch recompiled clipnorm clipvalue adamw subclassed_lazy "
    "data_dataset_mapped data_dataset_unknown_length data_pydataset data_padded data_sparse data_on_batch loop_returns "
    "loop_clipped loop_sum loop_signature loop_penalty loop_static loop_iterator loop_summaries eager_class "
    "eager_helpers eager_lazy_model session_changed_between_steps session_monitored"
).split()

# What two of them do is counted; its values depend on chance.
_COUNTED = ("adam gan data_dataset_shuffled loop_two_functions session_feed").split()
_MORE_COUNTED = (
    "data_generator data_on_batch loop_gan loop_by_hand loop_random custom_train_step mean_teacher data_pydataset "
    "data_ragged loop_metrics loop_returns loop_sum loop_in_turn loop_checkpoint loop_static"
).split()

# The same scripts with Keras 2; those that are left out use what it has not, or add little to these.
_KERAS_2 = (
    "sgd_momentum sample_weight auc_precision_recall stateful_lstm evaluate_predict save_load frozen_recompiled "
    "validation_split verbose_1_full_bar batch_logs rate_per_batch fits_in_a_callback stop_in_epoch "
    "interrupted_and_resumed fits_without_a_step layer_summaries step_that_reads_the_counter sparse_embedding "
    "custom_train_step data_dataset_shuffled data_dataset_unknown_length data_steps_per_execution data_generator "
    "data_pydataset data_ragged data_on_batch_gan loop_gan loop_checkpoint older_momentum older_adam older_loss_scale "
    "newer_loss_scale branching_layer clipping_train_step added_metric sequence_with_threads session_layers "
    "numbers_of_tf_random"
).split()
_MORE_OF_KERAS_2 = (
    "adam conv class_weight reduction_sum l2 add_loss_sum custom_train_step_masked two_inputs_two_outputs custom_metric "
    "metric_of_a_batch masked_gru second_fit recompiled verbose_1 early_stopping steps_per_epoch weights_per_batch "
    "weighted_metrics subclassed_lazy data_dataset_mapped data_strings loop_metrics older_schedule last_batch_3 "
    "reduction_sum_sample_weight loss_summed_by_hand custom_train_step_sum custom_train_step_rows "
    "custom_train_step_returns loss_divided_by_a_mask loss_root_of_mean loss_overlap custom_train_step_overlap "
    "activity_regularizer_of_means metric_of_two_models loss_contrastive loss_contrastive_sum "
    "custom_train_step_contrastive loss_over_picked_rows loss_unexplained one_size_written_out data_of_two_sizes "
    "layer_of_rows_together layer_keeps_a_sum loss_per_class activity_regularizer add_loss custom_loss_class "
    "masked_pooling masked_loss two_models checkpoint rate_scheduler jit_compiled global_clipnorm adamw schedule ema "
    "two_optimizers data_dataset_endless data_dataset_class_weight data_dataset_shuffled_and_looked_at "
    "data_dataset_under_a_strategy data_pandas loop_clipped loop_accumulated loop_signature loop_over_data loop_printed"
).split()
_KERAS_2_ASYNCHRONOUS = (
    "sgd_momentum batch_logs sparse_embedding custom_train_step batch_normalization data_generator older_momentum "
    "older_loss_scale"
).split()
_MORE_OF_KERAS_2_ASYNCHRONOUS = (
    "adam sample_weight weights_set_between_epochs recompiled masked_gru loop_metrics older_adam conv reduction_sum l2 "
    "early_stopping rate_per_batch global_clipnorm adamw schedule ema subclassed_lazy data_dataset_shuffled data_ragged "
    "data_on_batch_gan loop_two_functions loop_by_hand older_schedule newer_loss_scale"
).split()


def _chosen(names: list[str], more: list[str]) -> list[str]:
    return names + more if ALL else names


EXACT = [
    *((name, workers) for name in _ONE_WORKER for workers in ((1, 2) if ALL else (1,))),
    *((name, workers) for name in _BOTH for workers in ((2, 4) if ALL else (2,))),
    *((name, 2) for name in _chosen(_TWO_WORKERS, _MORE_ON_TWO_WORKERS)),
    *((name, 4) for name in _chosen(_FOUR_WORKERS, _MORE_ON_FOUR_WORKERS)),
    *((name, workers) for name in _RANDOM for workers in ((1, 2, 4) if ALL else (2, 4))),
]
ASYNCHRONOUS = _chosen(_ASYNCHRONOUS, _MORE_ASYNCHRONOUS)
COUNTED = _chosen(_COUNTED, _MORE_COUNTED)
KERAS_2 = _chosen(_KERAS_2, _MORE_OF_KERAS_2)
KERAS_2_ASYNCHRONOUS = _chosen(_KERAS_2_ASYNCHRONOUS, _MORE_OF_KERAS_2_ASYNCHRONOUS)
# Whether chosen or not.
LISTED = {
    *_BOTH, *_ONE_WORKER, *_TWO_WORKERS, *_MORE_ON_TWO_WORKERS, *_FOUR_WORKERS, *_MORE_ON_FOUR_WORKERS, *_RANDOM,
    *_ASYNCHRONOUS, *_MORE_ASYNCHRONOUS, *_KERAS_2, *_MORE_OF_KERAS_2,
}  # fmt: skip
