# The extension module that cffi generates from core/python/native.
from typing import Any

ffi: Any
lib: Any
