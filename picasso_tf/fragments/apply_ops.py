"""TensorFlow's dense training ops, written as programs.

Each is the Eigen expression of the op's CPU kernel, operation by operation in the
order in which it is evaluated, so that the bits agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from picasso_tf.graph import GraphView
from picasso_tf.node import Node

# (instruction, operands...) -> its result
Line = Callable[..., str]


def _no_objection(view: GraphView, node: Node) -> str | None:
    return None


@dataclasses.dataclass(frozen=True)
class ApplyOp:
    """How to write one op.

    Attributes:
      variables: the first inputs, all of one shape and all written.
      write: writes the program: takes Line, the variables, the other operands and
        the node.
      declines: the reason to leave a node alone, or None.
      unused: how many of the last inputs the program does not read.
    """

    variables: int
    write: Callable[[Line, list[str], list[str], Node], None]
    declines: Callable[[GraphView, Node], str | None] = _no_objection
    unused: int = 0


def _add(line: Line, var: str, value: str) -> str:
    """The variable's new value."""
    line("assign_add", var, value)
    return line("read", var)


def _gradient_descent(line, vars_, rest, node):
    lr, g = rest
    line("assign_sub", vars_[0], line("mul", g, lr))


def _momentum(line, vars_, rest, node):
    var, accum = vars_
    lr, g, momentum = rest
    line("assign", accum, line("add", line("mul", line("read", accum), momentum), g))
    a = line("read", accum)
    if node.attr("use_nesterov", False):
        ahead = line("mul", line("mul", a, momentum), lr)
        step = line("add", line("mul", g, lr), ahead)
    else:
        step = line("mul", a, lr)
    line("assign_sub", var, step)


def _keras_momentum(line, vars_, rest, node):
    var, accum = vars_
    lr, g, momentum = rest
    step = line("mul", g, lr)
    line("assign", accum, line("sub", line("mul", line("read", accum), momentum), step))
    a = line("read", accum)
    if node.attr("use_nesterov", False):
        a = line("sub", line("mul", a, momentum), step)
    line("assign_add", var, a)


def _adagrad(line, vars_, rest, node):
    var, accum = vars_
    lr, g = rest
    if node.attr("update_slots", True):
        a = _add(line, accum, line("square", g))
    else:
        a = line("read", accum)
    line("assign_sub", var, line("mul", line("mul", g, lr), line("rsqrt", a)))


def _adagrad_v2(line, vars_, rest, node):
    var, accum = vars_
    lr, epsilon, g = rest
    if node.attr("update_slots", True):
        a = _add(line, accum, line("square", g))
    else:
        a = line("read", accum)
    scale = line("add", line("sqrt", a), epsilon)
    line("assign_sub", var, line("div", line("mul", g, lr), scale))


def _adam(line, vars_, rest, node):
    var, m, v = vars_
    beta1_power, beta2_power, lr, beta1, beta2, epsilon, g = rest
    alpha = line(
        "div",
        line("mul", lr, line("sqrt", line("sub", "#1", beta2_power))),
        line("sub", "#1", beta1_power),
    )
    rest1, rest2 = line("sub", "#1", beta1), line("sub", "#1", beta2)
    new_m = _add(line, m, line("mul", line("sub", g, line("read", m)), rest1))
    spread = line("sub", line("square", g), line("read", v))
    new_v = _add(line, v, line("mul", spread, rest2))
    if node.attr("use_nesterov", False):
        new_m = line("add", line("mul", g, rest1), line("mul", beta1, new_m))
    step = line("mul", new_m, alpha)
    scale = line("add", line("sqrt", new_v), epsilon)
    line("assign_sub", var, line("div", step, scale))


def _rms_prop(line, vars_, rest, node):
    var, ms, mom = vars_
    lr, rho, momentum, epsilon, g = rest
    spread = line("sub", line("square", g), line("read", ms))
    new_ms = _add(line, ms, line("mul", spread, line("sub", "#1", rho)))
    kept = line("mul", line("read", mom), momentum)
    scale = line("sqrt", line("add", new_ms, epsilon))
    line("assign", mom, line("add", kept, line("div", line("mul", g, lr), scale)))
    line("assign_sub", var, line("read", mom))


def _centered_rms_prop(line, vars_, rest, node):
    var, mg, ms, mom = vars_
    lr, rho, momentum, epsilon, g = rest
    decay = line("sub", "#1", rho)
    spread = line("sub", line("square", g), line("read", ms))
    new_ms = _add(line, ms, line("mul", spread, decay))
    new_mg = _add(line, mg, line("mul", line("sub", g, line("read", mg)), decay))
    denom = line("add", line("sub", new_ms, line("square", new_mg)), epsilon)
    kept = line("mul", line("read", mom), momentum)
    step = line("div", line("mul", g, lr), line("sqrt", denom))
    line("assign", mom, line("add", kept, step))
    line("assign_sub", var, line("read", mom))


def _adadelta(line, vars_, rest, node):
    var, accum, accum_update = vars_
    lr, rho, epsilon, g = rest
    decay = line("sub", "#1", rho)
    kept = line("mul", line("read", accum), rho)
    new = line("mul", line("square", g), decay)
    line("assign", accum, line("add", kept, new))
    old_update = line("read", accum_update)
    root = line("sqrt", line("add", old_update, epsilon))
    scale = line("rsqrt", line("add", line("read", accum), epsilon))
    update = line("mul", line("mul", root, scale), g)
    line("assign_sub", var, line("mul", update, lr))
    kept = line("mul", old_update, rho)
    new = line("mul", line("square", update), decay)
    line("assign", accum_update, line("add", kept, new))


def _ftrl(line, vars_, rest, node):
    var, accum, linear = vars_
    g, lr, l1, l2, *shrinkage = rest
    by_lr = node.attr("multiply_linear_by_lr", False)
    v, a = line("read", var), line("read", accum)
    shrunk = g
    if shrinkage:
        shrunk = line("add", g, line("mul", line("mul", "#2", shrinkage[0]), v))
    squared = line("square", g)
    root = line("sqrt", line("add", a, squared))
    change = line("sub", root, line("sqrt", a))
    if by_lr:
        step = line("sub", line("mul", shrunk, lr), line("mul", change, v))
    else:
        step = line("sub", shrunk, line("mul", line("div", change, lr), v))
    n = _add(line, linear, step)
    bound = line("mul", l1, lr) if by_lr else l1
    twice = line("mul", "#2", l2)
    x = line("sub", line("mul", bound, line("sign", n)), n)
    if by_lr:
        y = line("add", root, line("mul", twice, lr))
    else:
        y = line("add", line("div", root, lr), twice)
    outside = line("greater", line("abs", n), bound)
    line("assign", var, line("select", outside, line("div", x, y), "#0"))
    line("assign_add", accum, squared)


def _ftrl_declines(view: GraphView, node: Node) -> str | None:
    """TensorFlow's op checks its hyperparameters in each step, and has another
    formula for other powers."""
    hyper = [view.constant(tensor) for tensor in node.inputs[4:]]
    if any(value is None or value.size != 1 for value in hyper):
        return "Ftrl with hyperparameters that are not constant"
    lr, *strengths, power = (value.reshape(())[()] for value in hyper)
    if not lr > 0 or not all(strength >= 0 for strength in strengths):
        return "Ftrl with hyperparameters that it refuses"
    if power != np.asarray(-0.5, power.dtype):
        return "Ftrl with a learning rate power other than -0.5"
    return None


APPLY_OPS = {
    "ResourceApplyGradientDescent": ApplyOp(1, _gradient_descent),
    "ResourceApplyMomentum": ApplyOp(2, _momentum),
    "ResourceApplyKerasMomentum": ApplyOp(2, _keras_momentum),
    "ResourceApplyAdagrad": ApplyOp(2, _adagrad),
    "ResourceApplyAdagradV2": ApplyOp(2, _adagrad_v2),
    "ResourceApplyAdam": ApplyOp(3, _adam),
    "ResourceApplyRMSProp": ApplyOp(3, _rms_prop),
    "ResourceApplyCenteredRMSProp": ApplyOp(4, _centered_rms_prop),
    "ResourceApplyAdadelta": ApplyOp(3, _adadelta),
    "ResourceApplyFtrl": ApplyOp(3, _ftrl, _ftrl_declines, unused=1),
    "ResourceApplyFtrlV2": ApplyOp(3, _ftrl, _ftrl_declines, unused=1),
}
