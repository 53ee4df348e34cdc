"""Verdicts: the value at the end of each turn must be that of the gold calls."""

from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call


def multi_turn_checker(turns, gold, entry, category, model_name):
    def run(calls, name):
        config = (entry["initial_config"], entry["involved_classes"], name, entry["id"])
        return execute_multi_turn_func_call(calls, *config, long_context="long_context" in category, is_evaL_run=True)

    for steps, expected in zip(turns, gold, strict=True):
        objects = {"Counter": None}
        for calls in steps:
            _, objects = run(calls, model_name)
        _, others = run(expected, model_name + "_ground_truth")
        if expected and (not steps or objects["Counter"].value != others["Counter"].value):
            return {"valid": False, "error_type": "multi_turn:instance_state_mismatch"}
    return {"valid": True}
