"""Lists operations of which many have one rule."""

# Entry by entry, of one input.
UNARY = """
Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil Conj Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1
Floor Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri OnesLike Real Reciprocal Relu Relu6 Rint
Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh CheckNumerics CheckNumericsV2 ComplexAbs
BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK1 BesselK0e BesselK1e BesselY0 BesselY1 Dawsn Expint FresnelCos FresnelSin
Spence FakeQuantWithMinMaxArgs PopulationCount StringLower StringUpper StringLength
StringStrip AsString StringToNumber StringToHashBucketFast StringToHashBucketStrong StringToHashBucket StaticRegexReplace
StaticRegexFullMatch EncodeBase64 DecodeBase64 UnicodeTranscode Bucketize
""".split()

# Entry by entry, of inputs that are broadcast.
BROADCASTING = """
AddV2 Add Sub Mul Div RealDiv FloorDiv TruncateDiv DivNoNan MulNoNan Xdivy Xlogy Xlog1py Mod FloorMod TruncateMod Pow Maximum
Minimum SquaredDifference Atan2 Complex Igamma Igammac IgammaGradA Zeta Polygamma Betainc NextAfter Equal NotEqual Less
LessEqual Greater GreaterEqual LogicalAnd LogicalOr ApproximateEqual BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift
SelectV2
ClipByValue AddN EluGrad SeluGrad ReluGrad Relu6Grad LeakyReluGrad SigmoidGrad TanhGrad SqrtGrad RsqrtGrad SoftplusGrad
SoftsignGrad InvGrad ReciprocalGrad FakeQuantWithMinMaxArgsGradient
""".split()

# Random numbers.
DRAWING = """
RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal ParameterizedTruncatedNormal RandomGamma RandomPoissonV2
StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt StatefulUniformFullInt
StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2
StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessParameterizedTruncatedNormal
""".split()
