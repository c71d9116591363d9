"""In the place of OpenAI Gym, which needs older versions: its classic control tasks with the interface of before 0.26.

The equations are those of the textbooks (Barto, Sutton and Anderson 1983 for the cart and pole; Sutton and Barto 2018, example
10.1, for the car). A script of reinforcement learning trains for hours: here it ends well after so many steps of its tasks.
"""

import math
import types

import numpy as np

from gym import spaces

_STEPS_OF_A_SCRIPT = 250
_taken = 0


class Env:
    """A task."""

    metadata: dict = {}
    reward_range = (-math.inf, math.inf)
    most_steps = 200

    def __init__(self):
        self.np_random = np.random.RandomState(0)
        self.spec = types.SimpleNamespace(
            id=type(self).__name__, max_episode_steps=self.most_steps, reward_threshold=195.0
        )
        self._max_episode_steps = self.most_steps
        self.unwrapped = self
        self._step_of_episode = 0

    def seed(self, seed=None):
        self.np_random = np.random.RandomState(seed)
        return [seed]

    def reset(self, **_):
        self._step_of_episode = 0
        self.state = self._begun()
        return self._seen()

    def step(self, action):
        global _taken
        _taken += 1
        if _taken > _STEPS_OF_A_SCRIPT:
            raise SystemExit(0)
        self._step_of_episode += 1
        reward, done = self._moved(action)
        return self._seen(), reward, done or self._step_of_episode >= self._max_episode_steps, {}

    def render(self, *_, **__):
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        pass

    def _seen(self):
        return np.array(self.state, np.float32)


class CartPole(Env):
    observation_space = spaces.Box(-np.array([4.8, np.inf, 0.42, np.inf]), np.array([4.8, np.inf, 0.42, np.inf]))
    action_space = spaces.Discrete(2)

    def _begun(self):
        return self.np_random.uniform(-0.05, 0.05, 4)

    def _moved(self, action):
        x, speed, angle, turning = self.state
        force = 10.0 if int(action) == 1 else -10.0
        sine, cosine = math.sin(angle), math.cos(angle)
        pushed = (force + 0.05 * turning**2 * sine) / 1.1
        angular = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        linear = pushed - 0.05 * angular * cosine / 1.1
        self.state = np.array([x, speed, angle, turning]) + 0.02 * np.array([speed, linear, turning, angular])
        return 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095)


class MountainCar(Env):
    observation_space = spaces.Box(np.array([-1.2, -0.07]), np.array([0.6, 0.07]))
    action_space = spaces.Discrete(3)

    def _begun(self):
        return np.array([self.np_random.uniform(-0.6, -0.4), 0.0])

    def _force(self, action):
        return (int(action) - 1) * 0.001

    def _moved(self, action):
        place, speed = self.state
        speed = float(np.clip(speed + self._force(action) - 0.0025 * math.cos(3 * place), -0.07, 0.07))
        place = float(np.clip(place + speed, -1.2, 0.6))
        self.state = np.array([place, max(speed, 0.0) if place == -1.2 else speed])
        return -1.0, place >= 0.5


class MountainCarContinuous(MountainCar):
    action_space = spaces.Box(np.array([-1.0]), np.array([1.0]))

    def _force(self, action):
        return float(np.clip(np.ravel(action)[0], -1, 1)) * 0.0015


class Pendulum(Env):
    observation_space = spaces.Box(-np.array([1.0, 1.0, 8.0]), np.array([1.0, 1.0, 8.0]))
    action_space = spaces.Box(np.array([-2.0]), np.array([2.0]))

    def _begun(self):
        return self.np_random.uniform([-math.pi, -1], [math.pi, 1])

    def _moved(self, action):
        angle, turning = self.state
        torque = float(np.clip(np.ravel(action)[0], -2, 2))
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = upright**2 + 0.1 * turning**2 + 0.001 * torque**2
        turning = float(np.clip(turning + (15 * math.sin(angle) + 3 * torque) * 0.05, -8, 8))
        self.state = np.array([angle + turning * 0.05, turning])
        return -cost, False

    def _seen(self):
        return np.array([math.cos(self.state[0]), math.sin(self.state[0]), self.state[1]], np.float32)


def make(name, **_):
    tasks = {each.__name__: each for each in (CartPole, MountainCar, MountainCarContinuous, Pendulum)}
    kind, _, _version = name.partition("-v")
    if kind not in tasks:
        raise ValueError(f"no such task here: {name}")
    env = tasks[kind]()
    if name == "CartPole-v1":
        env._max_episode_steps = env.spec.max_episode_steps = 500
    env.spec.id = name
    return env
