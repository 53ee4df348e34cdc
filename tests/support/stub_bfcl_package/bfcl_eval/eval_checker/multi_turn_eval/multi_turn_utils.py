"""Calls; objects are globals of this module."""

import re


class Counter:
    def _load_scenario(self, scenario, long_context=False):
        self.value = scenario["value"] + 100 * long_context

    def add(self, by):
        self.value += by
        return {"value": self.value}

    def read(self):
        return self.value

    def spin(self):
        while True:
            pass


def execute_multi_turn_func_call(
    func_call_list, initial_config, involved_classes, model_name, test_entry_id, long_context=False, is_evaL_run=False
):
    name = f"{model_name}{'_eval' * is_evaL_run}_{test_entry_id}_Counter_instance"
    if name not in globals():
        globals()[name] = Counter()
        globals()[name]._load_scenario(initial_config["Counter"], long_context=long_context)
    results = []
    for call in func_call_list:
        try:
            found = eval(re.sub(r"\b(add|read|spin)\s*(?=\()", rf"{name}.\1", call))
            results.append(str(found))
        except Exception as error:  # noqa: BLE001
            results.append(f"Error during execution: {error}")
    return results, {"Counter": globals()[name]}
