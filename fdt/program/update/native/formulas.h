// What usual optimizers do to an entry, as `fdt/program/update/formula.py` writes it down: g is the gradient, s0 ... are
// scalars, i0 is what the parameters hold, i1 ... what the optimizer keeps of them, o0 ... what they will. Of tables, g and h
// are sums of what came for a row: of its values, and of their squares or of what else the optimizer makes of them first.
// Made by `python -m tests.helpers.formulas`.

FDT_FORMULA(sgd,
const T v0 = i0[i];
const T x0 = g * s0;
const T x1 = v0 - x0;
o0[i] = x1;)

FDT_FORMULA(sgd_decayed,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T x3 = g * s2;
const T x4 = x2 - x3;
o0[i] = x4;)

FDT_FORMULA(momentum,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s0;
const T x1 = g * s1;
const T x2 = x0 - x1;
const T x3 = v0 + x2;
o0[i] = x3;
o1[i] = x2;)

FDT_FORMULA(momentum_decayed,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = v1 * s2;
const T x4 = g * s3;
const T x5 = x3 - x4;
const T x6 = x2 + x5;
o0[i] = x6;
o1[i] = x5;)

FDT_FORMULA(nesterov,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s0;
const T x1 = g * s1;
const T x2 = x0 - x1;
const T x3 = x2 * s0;
const T x4 = g * s1;
const T x5 = x3 - x4;
const T x6 = v0 + x5;
o0[i] = x6;
o1[i] = x2;)

FDT_FORMULA(nesterov_decayed,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = v1 * s2;
const T x4 = g * s3;
const T x5 = x3 - x4;
const T x6 = x5 * s2;
const T x7 = g * s3;
const T x8 = x6 - x7;
const T x9 = x2 + x8;
o0[i] = x9;
o1[i] = x5;)

FDT_FORMULA(adam,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = g - v1;
const T x1 = x0 * s0;
const T x2 = v1 + x1;
const T x3 = x2 * s1;
const T v2 = i2[i];
const T x4 = g * g;
const T x5 = x4 - v2;
const T x6 = x5 * s2;
const T x7 = v2 + x6;
const T x8 = std::sqrt(x7);
const T x9 = x8 + s3;
const T x10 = x3 / x9;
const T x11 = v0 - x10;
o0[i] = x11;
o1[i] = x2;
o2[i] = x7;)

FDT_FORMULA(adamw,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = g - v1;
const T x4 = x3 * s2;
const T x5 = v1 + x4;
const T x6 = x5 * s3;
const T v2 = i2[i];
const T x7 = g * g;
const T x8 = x7 - v2;
const T x9 = x8 * s4;
const T x10 = v2 + x9;
const T x11 = std::sqrt(x10);
const T x12 = x11 + s5;
const T x13 = x6 / x12;
const T x14 = x2 - x13;
o0[i] = x14;
o1[i] = x5;
o2[i] = x10;)

FDT_FORMULA(rmsprop,
const T v0 = i0[i];
const T x0 = s0 * g;
const T v1 = i1[i];
const T x1 = s1 * v1;
const T x2 = g * g;
const T x3 = s2 * x2;
const T x4 = x1 + x3;
const T x5 = x4 + s3;
const T x6 = std::sqrt(x5);
const T x7 = x0 / x6;
const T x8 = v0 - x7;
o0[i] = x8;
o1[i] = x4;)

FDT_FORMULA(rmsprop_centered,
const T v0 = i0[i];
const T x0 = s0 * g;
const T v1 = i1[i];
const T x1 = s1 * v1;
const T x2 = g * g;
const T x3 = s2 * x2;
const T x4 = x1 + x3;
const T v2 = i2[i];
const T x5 = s3 * v2;
const T x6 = s4 * g;
const T x7 = x5 + x6;
const T x8 = x7 * x7;
const T x9 = x4 - x8;
const T x10 = x9 + s5;
const T x11 = std::sqrt(x10);
const T x12 = x0 / x11;
const T x13 = v0 - x12;
o0[i] = x13;
o1[i] = x4;
o2[i] = x7;)

FDT_FORMULA(rmsprop_momentum,
const T v0 = i0[i];
const T v2 = i2[i];
const T x0 = s0 * v2;
const T x1 = s1 * g;
const T v1 = i1[i];
const T x2 = s2 * v1;
const T x3 = g * g;
const T x4 = s3 * x3;
const T x5 = x2 + x4;
const T x6 = x5 + s4;
const T x7 = std::sqrt(x6);
const T x8 = x1 / x7;
const T x9 = x0 + x8;
const T x10 = v0 - x9;
o0[i] = x10;
o1[i] = x5;
o2[i] = x9;)

FDT_FORMULA(rmsprop_momentum_centered,
const T v0 = i0[i];
const T v3 = i3[i];
const T x0 = s0 * v3;
const T x1 = s1 * g;
const T v1 = i1[i];
const T x2 = s2 * v1;
const T x3 = g * g;
const T x4 = s3 * x3;
const T x5 = x2 + x4;
const T v2 = i2[i];
const T x6 = s4 * v2;
const T x7 = s5 * g;
const T x8 = x6 + x7;
const T x9 = x8 * x8;
const T x10 = x5 - x9;
const T x11 = x10 + s6;
const T x12 = std::sqrt(x11);
const T x13 = x1 / x12;
const T x14 = x0 + x13;
const T x15 = v0 - x14;
o0[i] = x15;
o1[i] = x5;
o2[i] = x8;
o3[i] = x14;)

FDT_FORMULA(adagrad,
const T v0 = i0[i];
const T x0 = s0 * g;
const T v1 = i1[i];
const T x1 = g * g;
const T x2 = v1 + x1;
const T x3 = x2 + s1;
const T x4 = std::sqrt(x3);
const T x5 = x0 / x4;
const T x6 = v0 - x5;
o0[i] = x6;
o1[i] = x2;)

FDT_FORMULA(adadelta,
const T v0 = i0[i];
const T v2 = i2[i];
const T x0 = v2 + s1;
const T x1 = std::sqrt(x0);
const T x2 = x1 * g;
const T v1 = i1[i];
const T x3 = s2 * v1;
const T x4 = g * g;
const T x5 = s3 * x4;
const T x6 = x3 + x5;
const T x7 = x6 + s4;
const T x8 = std::sqrt(x7);
const T x9 = x2 / x8;
const T x10 = -x9;
const T x11 = s0 * x10;
const T x12 = v0 + x11;
const T x13 = s5 * v2;
const T x14 = x10 * x10;
const T x15 = s6 * x14;
const T x16 = x13 + x15;
o0[i] = x12;
o1[i] = x6;
o2[i] = x16;)

FDT_FORMULA(adamax,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = g - v1;
const T x1 = x0 * s1;
const T x2 = v1 + x1;
const T x3 = s0 * x2;
const T v2 = i2[i];
const T x4 = s3 * v2;
const T x5 = std::abs(g);
const T x6 = x4 > x5 || x4 != x4 ? x4 : x5;
const T x7 = x6 + s4;
const T x8 = s2 * x7;
const T x9 = x3 / x8;
const T x10 = v0 - x9;
o0[i] = x10;
o1[i] = x2;
o2[i] = x6;)

FDT_FORMULA(nadam,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = g - v1;
const T x1 = x0 * s1;
const T x2 = v1 + x1;
const T x3 = s0 * x2;
const T x4 = x3 / s2;
const T x5 = s3 * g;
const T x6 = x5 / s4;
const T x7 = x4 + x6;
const T x8 = x7 * s5;
const T v2 = i2[i];
const T x9 = g * g;
const T x10 = x9 - v2;
const T x11 = x10 * s6;
const T x12 = v2 + x11;
const T x13 = x12 / s7;
const T x14 = std::sqrt(x13);
const T x15 = x14 + s8;
const T x16 = x8 / x15;
const T x17 = v0 - x16;
o0[i] = x17;
o1[i] = x2;
o2[i] = x12;)

FDT_FORMULA(lion,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s1;
const T x1 = g * s2;
const T x2 = x0 + x1;
const T x3 = T(x2 > 0) - T(x2 < 0);
const T x4 = s0 * x3;
const T x5 = v0 - x4;
const T x6 = v1 * s3;
const T x7 = g * s4;
const T x8 = x6 + x7;
o0[i] = x5;
o1[i] = x8;)

FDT_FORMULA(table_momentum,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s0;
const T x1 = x0 - g;
const T x2 = v0 + x1;
o0[i] = x2;
o1[i] = x1;)

FDT_FORMULA(table_momentum_decayed,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = v1 * s2;
const T x4 = x3 - g;
const T x5 = x2 + x4;
o0[i] = x5;
o1[i] = x4;)

FDT_FORMULA(table_nesterov,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s0;
const T x1 = x0 - g;
const T x2 = x1 * s0;
const T x3 = x2 - h;
const T x4 = v0 + x3;
o0[i] = x4;
o1[i] = x1;)

FDT_FORMULA(table_nesterov_decayed,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = v1 * s2;
const T x4 = x3 - g;
const T x5 = x4 * s2;
const T x6 = x5 - h;
const T x7 = x2 + x6;
o0[i] = x7;
o1[i] = x4;)

FDT_FORMULA(table_adam,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = g - v1;
const T x1 = x0 * s0;
const T x2 = v1 + x1;
const T x3 = x2 * s1;
const T v2 = i2[i];
const T x4 = h - v2;
const T x5 = x4 * s2;
const T x6 = v2 + x5;
const T x7 = std::sqrt(x6);
const T x8 = x7 + s3;
const T x9 = x3 / x8;
const T x10 = v0 - x9;
o0[i] = x10;
o1[i] = x2;
o2[i] = x6;)

FDT_FORMULA(table_adamw,
const T v0 = i0[i];
const T x0 = v0 * s0;
const T x1 = x0 * s1;
const T x2 = v0 - x1;
const T v1 = i1[i];
const T x3 = g - v1;
const T x4 = x3 * s2;
const T x5 = v1 + x4;
const T x6 = x5 * s3;
const T v2 = i2[i];
const T x7 = h - v2;
const T x8 = x7 * s4;
const T x9 = v2 + x8;
const T x10 = std::sqrt(x9);
const T x11 = x10 + s5;
const T x12 = x6 / x11;
const T x13 = x2 - x12;
o0[i] = x13;
o1[i] = x5;
o2[i] = x9;)

FDT_FORMULA(table_adamax,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = g - v1;
const T x1 = x0 * s1;
const T x2 = v1 + x1;
const T x3 = s0 * x2;
const T v2 = i2[i];
const T x4 = s3 * v2;
const T x5 = x4 > h || x4 != x4 ? x4 : h;
const T x6 = x5 + s4;
const T x7 = s2 * x6;
const T x8 = x3 / x7;
const T x9 = v0 - x8;
o0[i] = x9;
o1[i] = x2;
o2[i] = x5;)

FDT_FORMULA(table_lion,
const T v0 = i0[i];
const T v1 = i1[i];
const T x0 = v1 * s1;
const T x1 = x0 + g;
const T x2 = T(x1 > 0) - T(x1 < 0);
const T x3 = s0 * x2;
const T x4 = v0 - x3;
const T x5 = v1 * s2;
const T x6 = x5 + h;
o0[i] = x4;
o1[i] = x6;)
