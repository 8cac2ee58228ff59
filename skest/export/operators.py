# SPDX-License-Identifier: Apache-2.0
"""The operators that an exported graph may use.

None of them loops, branches, reads a file or runs code of a user: a row takes the same time
whatever it holds, and every engine has them.
"""

__all__ = ["ALLOWED_OPERATORS", "IR_VERSION", "OPSETS"]

OPSETS = {"": 18, "ai.onnx.ml": 2, "com.microsoft": 1}
"""Versions of the operator sets. Every ONNX Runtime from 1.17 on has them; networks of
float32 run from 1.15 on."""

IR_VERSION = 8

_ARITHMETIC = """
    Abs Add Ceil Clip Cos Cosh Div Erf Exp Floor Log Max Mean Min Mod Mul Neg Pow
    Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh
"""
_LOGIC = """
    And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual
    IsInf IsNaN Less LessOrEqual Not Or Where Xor
"""
_SHAPES = """
    Cast Concat ConstantOfShape CumSum Expand Flatten Gather GatherElements GatherND
    Identity NonZero Pad Range Reshape ScatterElements ScatterND Shape Size Slice Split
    Squeeze Tile Transpose Unsqueeze
"""
_REDUCTIONS = """
    ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare TopK
"""
_NETWORKS = """
    BatchNormalization Celu Conv Dropout Elu GRU Gelu Gemm GroupNormalization HardSigmoid
    HardSwish LSTM LayerNormalization LeakyRelu LogSoftmax MatMul Mish PRelu RNN Relu Selu
    Sigmoid Softmax Softplus Softsign ThresholdedRelu
"""
_PLAIN = _ARITHMETIC + _LOGIC + _SHAPES + _REDUCTIONS + _NETWORKS + " Constant OneHot"

ALLOWED_OPERATORS = frozenset(
    {("", name) for name in _PLAIN.split()}
    | {("ai.onnx.ml", "LabelEncoder"), ("com.microsoft", "MurmurHash3")}
)
"""Pairs of a domain and a name."""
