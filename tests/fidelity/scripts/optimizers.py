"""Cases: optimizers and what they carry, and every way in which a batch can be uneven."""

from typing import Any

from recording import Results, case, compiled, digits, fit, momentum
from tensorflow import keras

# Whole batches: another size is another graph for all of them, and what becomes of it other cases show.
EVEN = 4 * 64


def with_optimizer(optimizer: keras.optimizers.Optimizer) -> Results:
    return fit(compiled(optimizer=optimizer), *digits(EVEN))


@case
def sgd_momentum() -> Results:
    return fit(compiled(optimizer=momentum()), *digits(512))


@case
def adam() -> Results:
    return fit(compiled(optimizer=keras.optimizers.Adam(0.003)), *digits(512))


@case
def last_batch_1() -> Results:
    return fit(compiled(), *digits(4 * 64 + 1))


@case
def last_batch_2() -> Results:
    return fit(compiled(), *digits(4 * 64 + 2))


@case
def last_batch_3() -> Results:
    return fit(compiled(), *digits(4 * 64 + 3))


@case
def last_batch_4() -> Results:
    return fit(compiled(), *digits(4 * 64 + 4))


@case
def last_batch_1_adam() -> Results:
    return fit(compiled(optimizer=keras.optimizers.Adam(0.003)), *digits(4 * 64 + 1))


@case
def batch_smaller_than_workers() -> Results:
    return fit(compiled(optimizer=keras.optimizers.SGD(0.01, momentum=0.9)), *digits(61), batch_size=3)


@case
def batch_of_one() -> Results:
    return fit(compiled(optimizer=keras.optimizers.SGD(0.005)), *digits(30), batch_size=1, epochs=2)


@case
def clipnorm() -> Results:
    return with_optimizer(keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.1))


@case
def global_clipnorm() -> Results:
    return with_optimizer(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.2))


@case
def clipvalue() -> Results:
    return with_optimizer(keras.optimizers.SGD(0.05, momentum=0.9, clipvalue=0.01))


@case
def schedule() -> Results:
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=5, decay_rate=0.8)
    return with_optimizer(keras.optimizers.SGD(decay, momentum=0.9))


@case
def adamw() -> Results:
    return with_optimizer(keras.optimizers.AdamW(0.003, weight_decay=0.05))


@case
def ema() -> Results:
    return with_optimizer(keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9))


@case
def accumulation() -> Results:
    return with_optimizer(keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2))


@case
def loss_scale() -> Results:
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    return with_optimizer(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=7))


class SlotsSetInBuild(keras.optimizers.SGD):
    """Keras builds it in the first trace of a step, which TensorFlow throws away: the slots stay what they were made."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slow = [self.add_variable_from_reference(variable, name="slow") for variable in variables]
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        slow.assign(slow + 0.5 * (variable - slow))
        variable.assign(slow)


@case
def slots_set_in_build() -> Results:
    return with_optimizer(SlotsSetInBuild(0.05))
