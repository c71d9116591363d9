"""Which cases run on how many workers, and how one run of the case script serves many tests.

Every process imports TensorFlow and every case builds its graphs anew, so few cases run on two numbers of workers. What
depends on the loop around a step runs on 2 workers. What depends on how a batch is divided runs on 4 of them, most of it by
`make test-all` alone: the same cases run on 2 with Keras 2, and what they are made of is divided over up to 5 simulated workers
by `tests/division`.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.helpers.processes import Finished, run_fdt, run_python

SCRIPT = Path(__file__).parent / "scripts" / "run_cases.py"

BOTH = (
    "sgd_momentum adam conv last_batch_1 last_batch_3 sample_weight class_weight reduction_sum l2 "
    "evaluate_predict save_load second_fit"
).split()
TWO_WORKERS = (
    # The loop: callbacks, validation, what is printed.
    "validation_data validation_split validation_freq_initial_epoch steps_per_epoch verbose_1 verbose_2 "
    "early_stopping reduce_on_plateau rate_scheduler checkpoint batch_logs rate_per_batch weights_set_between_epochs "
    "weights_per_batch stop_in_epoch shuffle_off tensors_float64_default_batch keras_callbacks interrupted_and_resumed "
    "weighted_metrics jit_compiled mixed_precision stateful_lstm "
    # After the loop.
    "second_fit_other_data arrays_changed_in_place weights_set_by_hand rate_set_by_hand recompiled frozen_recompiled "
    "two_models shared_layers history_object "
    # Optimizers: what comes after the exchange.
    "global_clipnorm clipvalue adamw accumulation "
    "sparse_embedding subclassed_lazy custom_train_step gan mean_teacher "
    # Data.
    "data_dataset_shuffled data_dataset_endless data_dataset_unknown_length data_dataset_class_weight data_dataset_python "
    "data_dataset_shuffled_and_looked_at data_dataset_mapped data_dataset_batches_mapped data_dataset_under_a_strategy "
    "data_steps_per_execution data_generator data_generator_finite data_pydataset data_pydataset_threads data_pandas "
    "data_padded data_sparse data_strings data_on_batch data_on_batch_gan data_on_batch_frozen "
    # Loops of the script's own.
    "loop_clipped loop_gan loop_two_functions loop_accumulated loop_several_steps loop_signature loop_penalty "
    "loop_strategy loop_in_turn loop_checkpoint loop_in_graph loop_iterator loop_summaries loop_variables_in_operations "
    "loop_drawn_in_python loop_printed loop_graphs loop_over_data loop_over_places "
    # Loops without tf.function.
    "eager_tutorial eager_class eager_by_hand eager_gan eager_helpers eager_accumulated eager_nested_tapes "
    "eager_lazy_model "
    # Sessions of TensorFlow 1.
    "session_feed session_clipped_decayed_averaged session_changed_between_steps session_monitored session_data_set "
    "session_two_steps session_by_hand session_summaries session_of_one_row "
    "session_fetches_what_it_changes session_of_means_divided session_of_rows_that_meet "
    "session_of_unknown_ranks"
).split()
# Whether `make test-all` runs, or `make test`.
ALL = bool(os.environ.get("FDT_ALL_TESTS"))
FOUR_WORKERS = (
    "last_batch_2 batch_smaller_than_workers batch_of_one custom_train_step_rows layer_of_rows_together gradient_by_input "
    "mean_read_by_the_next_step metric_that_overwrites masked_gru data_ragged loop_metrics loop_keeps_rows loop_in_turn "
    "session_embedding two_inputs_two_outputs"
).split()
MORE_ON_FOUR_WORKERS = (
    "last_batch_4 last_batch_1_adam "
    "reduction_sum_sample_weight mean_with_sample_weight l2_reduction_sum activity_regularizer add_loss lambda_loss "
    "add_loss_sum add_loss_rows loss_summed_by_hand custom_train_step_sum custom_train_step_returns "
    "loss_divided_by_a_mask custom_train_step_masked "
    "loss_root_of_mean loss_overlap custom_train_step_overlap activity_regularizer_of_means metric_of_two_models "
    "loss_contrastive loss_contrastive_sum custom_train_step_contrastive loss_over_picked_rows custom_train_step_picked "
    "loss_unexplained loss_of_sum_and_mean loop_contrastive one_size_written_out one_size_asked_for data_of_two_sizes "
    "loss_in_branch layer_keeps_a_sum metric_of_a_batch loss_per_class "
    "learned_positions "
    "custom_loss_class custom_metric auc_precision_recall "
    "clipnorm schedule ema loss_scale "
    "masked_pooling masked_loss custom_train_step_uneven two_optimizers "
    "data_dataset "
    "loop_returns loop_sum loop_by_hand loop_static loop_losses_of_layers "
).split()
RANDOM = "dropout batch_normalization loop_random".split()

EXACT = [
    *((name, workers) for name in BOTH for workers in ((2, 4) if ALL else (2,))),
    *((name, 2) for name in TWO_WORKERS),
    *((name, 4) for name in (FOUR_WORKERS + (MORE_ON_FOUR_WORKERS if ALL else []))),
    *((name, workers) for name in RANDOM for workers in (1, 2, 4)),
]
# One asynchronous worker meets no delay: what it does is plain Keras.
ASYNCHRONOUS = (
    "sgd_momentum adam conv last_batch_3 sample_weight class_weight reduction_sum l2 evaluate_predict second_fit "
    "validation_split early_stopping rate_scheduler batch_logs rate_per_batch weights_set_between_epochs recompiled "
    "frozen_recompiled two_models global_clipnorm clipnorm clipvalue adamw accumulation schedule ema loss_scale "
    "sparse_embedding subclassed_lazy custom_train_step gan mean_teacher masked_gru "
    "auc_precision_recall dropout batch_normalization "
    "data_dataset_shuffled data_dataset_mapped data_dataset_unknown_length data_generator data_pydataset data_ragged "
    "data_padded data_sparse "
    "data_strings data_on_batch data_on_batch_gan "
    "loop_metrics loop_returns loop_clipped loop_sum loop_gan loop_two_functions loop_in_turn loop_by_hand loop_signature "
    "loop_penalty "
    "loop_checkpoint loop_random loop_static loop_iterator loop_summaries loop_printed "
    "loop_graphs loop_over_data "
    "eager_tutorial eager_class eager_gan eager_helpers eager_lazy_model eager_by_hand "
    "session_feed session_clipped_decayed_averaged session_changed_between_steps session_monitored session_data_set "
    "session_two_steps session_embedding session_by_hand"
).split()

# What two of them do is counted; its values depend on chance.
COUNTED = (
    "adam custom_train_step gan mean_teacher data_dataset_shuffled data_generator data_pydataset data_ragged data_on_batch "
    "loop_metrics loop_returns loop_sum loop_gan loop_two_functions loop_in_turn loop_by_hand loop_checkpoint loop_static "
    "loop_random "
    "session_feed"
).split()

# The same scripts with Keras 2; those that are left out use what it has not, or add little to these.
KERAS_2 = (
    "sgd_momentum adam conv last_batch_3 sample_weight class_weight reduction_sum reduction_sum_sample_weight l2 "
    "add_loss_sum loss_summed_by_hand custom_train_step_sum custom_train_step_rows custom_train_step_returns "
    "loss_divided_by_a_mask custom_train_step_masked "
    "loss_root_of_mean loss_overlap custom_train_step_overlap activity_regularizer_of_means metric_of_two_models "
    "loss_contrastive loss_contrastive_sum custom_train_step_contrastive loss_over_picked_rows loss_unexplained "
    "one_size_written_out data_of_two_sizes layer_of_rows_together layer_keeps_a_sum metric_of_a_batch loss_per_class "
    "activity_regularizer add_loss custom_loss_class custom_metric auc_precision_recall two_inputs_two_outputs "
    "masked_gru masked_pooling masked_loss stateful_lstm evaluate_predict save_load second_fit recompiled "
    "frozen_recompiled two_models "
    "validation_split verbose_1 early_stopping checkpoint batch_logs rate_per_batch rate_scheduler stop_in_epoch "
    "steps_per_epoch interrupted_and_resumed jit_compiled weights_per_batch weighted_metrics "
    "global_clipnorm adamw schedule ema sparse_embedding subclassed_lazy custom_train_step two_optimizers "
    "data_dataset_shuffled data_dataset_endless data_dataset_unknown_length data_dataset_class_weight "
    "data_dataset_shuffled_and_looked_at data_dataset_mapped data_dataset_under_a_strategy "
    "data_steps_per_execution data_generator data_pydataset data_pandas data_ragged data_strings data_on_batch_gan "
    "loop_metrics loop_clipped loop_gan loop_accumulated loop_signature loop_checkpoint loop_over_data loop_printed "
    "older_momentum older_adam older_schedule older_loss_scale newer_loss_scale branching_layer clipping_train_step "
    "added_metric sequence_with_threads session_layers"
).split()
KERAS_2_ASYNCHRONOUS = (
    "sgd_momentum adam conv sample_weight reduction_sum l2 early_stopping batch_logs rate_per_batch "
    "weights_set_between_epochs recompiled global_clipnorm adamw schedule ema sparse_embedding subclassed_lazy "
    "custom_train_step masked_gru batch_normalization data_dataset_shuffled data_generator data_ragged data_on_batch_gan "
    "loop_metrics loop_two_functions loop_by_hand older_momentum older_adam older_schedule older_loss_scale newer_loss_scale"
).split()

_START_S = 90.0
_CASE_S = 25.0
_RESTARTS = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one case gave: results, or the reason why there are none."""

    results: dict[str, np.ndarray]
    error: str | None = None

    def expect(self) -> dict[str, np.ndarray]:
        assert self.error is None, self.error
        return self.results


def run_cases(names: Sequence[str], num_workers: int, mode: str, out: Path, keras: int = 3) -> dict[str, Outcome]:
    """Runs cases in one process, with one generation of Keras; 0 workers is plain python.

    A case that takes the process with it costs that case: the process is started again with the ones after it.
    """
    outcomes: dict[str, Outcome] = {}
    todo = list(names)
    for _ in range(1 + _RESTARTS):
        finished = _run(todo, num_workers, mode, out, keras)
        outcomes.update(written_cases(todo, out))
        todo = [name for name in todo if name not in outcomes]
        if not todo:
            return outcomes
        lost = todo.pop(0)
        outcomes[lost] = Outcome({}, f"the process ended in case {lost}\n{finished.describe()}")
    reason = f"not run: the process ended {1 + _RESTARTS} times before this case; last in case {lost}"
    return outcomes | {name: Outcome({}, reason) for name in todo}


def _run(names: Sequence[str], num_workers: int, mode: str, out: Path, keras: int) -> Finished:
    environment = {"TF_USE_LEGACY_KERAS": "1"} if keras == 2 else {}
    arguments = ("--cases", ",".join(names), "--out", str(out))
    out.mkdir(parents=True, exist_ok=True)
    limit_s = _START_S + _CASE_S * len(names)
    if num_workers == 0:
        return run_python(SCRIPT, *arguments, limit_s=limit_s, cwd=out, **environment)
    return run_fdt(SCRIPT, *arguments, workers=num_workers, mode=mode, limit_s=limit_s, cwd=out, **environment)


def written_cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """Returns what a process that ran cases has written of them."""
    for name in names:
        results, error = out / f"{name}.npz", out / f"{name}.error"
        if results.exists():
            with np.load(results) as arrays:
                yield name, Outcome({key: arrays[key] for key in arrays.files})
        elif error.exists():
            yield name, Outcome({}, f"case {name} raised\n{error.read_text()}")
