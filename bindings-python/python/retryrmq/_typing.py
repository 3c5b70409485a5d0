"""``Unpack``, if Python has it, so that ``typing.get_type_hints`` works on functions that take options by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
else:

    class Unpack:
        """Stands in for it in Python 3.10, which would otherwise need a package for nothing else."""

        def __class_getitem__(cls, options: Any) -> Any:
            return options
