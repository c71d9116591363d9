// How a gradient is compensated for the distance the parameters have moved, entry by entry (formulas: nfdt/rules.py).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "runs.h"
#include "threads.h"

namespace fdt {

// Partial sums that a thread keeps side by side.
constexpr int64_t kLanes = 16;

// Half precision is computed in 32 bits: squares of small 16-bit numbers are zero, of large ones infinite.
template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

struct Strength {
  double lambda0, decay, epsilon, correction;
};

// What is computed for one entry of a gradient g.
template <typename T>
class Entry {
 public:
  using W = typename Wide<T>::type;

  explicit Entry(const Strength& strength)
      : lambda0_(strength.lambda0),
        decay_(strength.decay),
        rest_(1 - strength.decay),
        epsilon_(strength.epsilon),
        inverse_(1 / strength.correction) {}

  // Returns s after g. s does not take up overflowed values: a script that scales its loss skips such a step.
  W Mean(W before, W g) const {
    const W after = decay_ * before + rest_ * (g * g);
    return after <= std::numeric_limits<W>::max() ? after : before;
  }

  // Returns c / g, where c is the correction. `s`: its value after g, used if adaptive. An overflow gives no correction.
  template <bool kAdaptive>
  W Factor(W g, W s, W moved) const {
    W factor = lambda0_ * g;
    if (kAdaptive) factor /= std::sqrt(s * inverse_ + epsilon_);
    factor *= moved;
    return std::abs(factor * g) <= std::numeric_limits<W>::max() ? factor : W(0);
  }

 private:
  const W lambda0_, decay_, rest_, epsilon_, inverse_;
};

// Consecutive entries that are compensated together: the gradient's tensor and the place in it, in the result, and in the
// shard's vector.
struct Run {
  int64_t tensor, from, given, kept, length;
};

struct Sums {
  double correction = 0, gradient = 0;

  void Add(const Sums& other) { correction += other.correction, gradient += other.gradient; }

  // Returns the factor that shortens a correction to the clip times the gradient's length; 0 for an overflow.
  double Scale(double clip) const {
    if (!std::isfinite(correction)) return 0;
    if (std::isinf(clip) || correction <= clip * clip * gradient) return 1;
    return clip * std::sqrt(gradient / correction);
  }
};

template <typename T>
class Compensation {
 public:
  using W = typename Wide<T>::type;

  // `s` is null for a constant strength; `now` and `then` are null for a gradient that met no delay.
  Compensation(const std::vector<const T*>& g, const T* now, const T* then, W* s, const Strength& strength)
      : g_(g), now_(now), then_(then), s_(s), strength_(strength) {}

  // Updates s with a run's entries and writes them, compensated, to `out`.
  Sums First(const Run& run, T* out) const {
    if (now_ == nullptr) return Note(run, out);
    return s_ != nullptr ? Pass<true, true>(run, W(1), out) : Pass<false, true>(run, W(1), out);
  }

  // Computes the same correction again, and adds `scale` times it.
  void Second(const Run& run, double scale, T* out) const {
    s_ != nullptr ? Pass<true, false>(run, W(scale), out) : Pass<false, false>(run, W(scale), out);
  }

 private:
  template <bool kAdaptive, bool kFirst>
  Sums Pass(const Run& run, W scale, T* __restrict out) const {
    const Entry<T> entry(strength_);
    // `__restrict`: the arrays do not overlap, so the compiler can vectorize.
    const T *__restrict g_of = g_[run.tensor] + run.from, *__restrict now = now_ + run.kept, *__restrict then = then_ + run.kept;
    W* __restrict s_of = s_ + run.kept;
    W corrections[kLanes] = {}, gradients[kLanes] = {};
    const auto one = [&](int64_t i, int64_t lane) {
      const W g = W(g_of[i]);
      if (kAdaptive && kFirst) s_of[i] = entry.Mean(s_of[i], g);
      const W c = g * entry.template Factor<kAdaptive>(g, kAdaptive ? s_of[i] : W(0), W(now[i]) - W(then[i]));
      if (kFirst) {
        corrections[lane] += c * c;
        gradients[lane] += g * g;
        out[i] = T(g + c);
      } else {
        out[i] = T(g + scale * c);
      }
    };
    int64_t i = 0;
    for (; i + kLanes <= run.length; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
    }
    for (; i < run.length; ++i) one(i, 0);
    Sums sums;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums.correction += corrections[lane];
      sums.gradient += gradients[lane];
    }
    return sums;
  }

  // Only updates s with the gradient.
  Sums Note(const Run& run, T* out) const {
    const Entry<T> entry(strength_);
    for (int64_t i = 0; i < run.length; ++i) {
      const T given = g_[run.tensor][run.from + i];
      if (s_ != nullptr) s_[run.kept + i] = entry.Mean(s_[run.kept + i], W(given));
      out[i] = given;
    }
    return Sums();
  }

  const std::vector<const T*> g_;
  const T *const now_, *const then_;
  W* const s_;
  const Strength strength_;
};

// Compensates runs; `groups` tensors are clipped each by itself.
template <typename T>
Sums CompensateAll(const Compensation<T>& compensation, const std::vector<Run>& runs, size_t groups, double clip, T* out) {
  if (runs.empty()) return Sums();
  int64_t entries = 0;
  for (const Run& run : runs) entries += run.length;
  const int64_t cost_each = kCostPerEntry * entries / int64_t(runs.size());
  const auto each = [&](const std::function<void(int64_t)>& work) {
    InParallel(runs.size(), cost_each, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  };
  std::vector<Sums> parts(runs.size()), sums(groups);
  each([&](int64_t i) { parts[i] = compensation.First(runs[i], out + runs[i].given); });
  for (size_t i = 0; i < runs.size(); ++i) sums[runs[i].tensor].Add(parts[i]);
  std::vector<double> scales;
  Sums total;
  for (const Sums& of_tensor : sums) {
    const double scale = of_tensor.Scale(clip);
    scales.push_back(scale);
    total.Add({scale > 0 ? scale * scale * of_tensor.correction : 0, of_tensor.gradient});
  }
  if (std::any_of(scales.begin(), scales.end(), [](double scale) { return scale != 1; })) {
    each([&](int64_t i) {
      const double scale = scales[runs[i].tensor];
      if (scale != 1) compensation.Second(runs[i], scale, out + runs[i].given);
    });
  }
  return total;
}

}  // namespace fdt
