"""llama_cpp.server with drafts: ``python -m dspark_cpp.server --model TARGET.gguf --draft DRAFT.gguf``.

Needs the packages of ``pip install 'dspark-cpp-python[server]'``.
"""

from .app import create_app
from .settings import ConfigFileSettings, ModelSettings, ServerSettings, Settings

__all__ = ["ConfigFileSettings", "ModelSettings", "ServerSettings", "Settings", "create_app"]
