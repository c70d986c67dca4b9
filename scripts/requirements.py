"""Print what the development environment needs, one requirement a line, from pyproject.toml."""

import re
from pathlib import Path

text = Path(__file__).parent.parent.joinpath("pyproject.toml").read_text()
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads(text)["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["notebook"], *extras["pytest"], *extras["dev"]]
print("\n".join(re.sub(r"\s", "", requirement) for requirement in wanted))
