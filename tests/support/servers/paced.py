"""Worker extension of the tests' vLLM servers: a time for every step of the engine."""

import time
from typing import Any

from rlhf_trainer.engines.vllm.weights.extension import WeightStatus


class Paced(WeightStatus):
    """Responses stay under way for as long as a test needs, however late the machine lets the test act."""

    def pace(self, seconds: float) -> None:
        """Each step takes at least this long; 0 takes that back."""
        vars(self).pop("execute_model", None)
        if seconds:
            step = self.execute_model  # type: ignore[attr-defined]

            def execute_model(*arguments: Any, **options: Any) -> Any:
                time.sleep(seconds)
                return step(*arguments, **options)

            self.execute_model = execute_model
