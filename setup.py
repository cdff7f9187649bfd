import io
import os
import re

from setuptools import setup

# None today. A build for a release sets it: docs/releasing.md.
REPOSITORY = os.environ.get("LEGACYGA_REPOSITORY")
HERE = os.path.dirname(os.path.abspath(__file__))


def read(*path):
    # io.open: that Python 2.7 comes as far as python_requires.
    with io.open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return file.read()


def shown_alone(text):
    """The README as an index of packages shows it, without the repository: no pictures, and paths in place of links."""
    text = re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]+)\]\((?!https://)(.+?)\)", r"\1 (`\2`)", text)


def addresses(repository):
    repository = repository.rstrip("/")
    return {
        "Source": repository,
        "Issues": repository + "/issues",
        "Changelog": repository + "/blob/HEAD/CHANGELOG.md",
    }


setup(
    name="legacyga",
    version=re.search(r'__version__ = "(.+)"', read("legacyga", "_version.py")).group(1),
    description="Exact gradient accumulation for the TensorFlow and Keras a project is stuck with",
    long_description=shown_alone(read("README.md")),
    long_description_content_type="text/markdown",
    license="MIT",
    author="the legacyga maintainers",
    project_urls=addresses(REPOSITORY) if REPOSITORY else {},
    keywords="tensorflow keras gradient accumulation optimizer batch size memory",
    packages=["legacyga"] + ["legacyga." + folder for folder in "backend windows optimizers slices fit cli".split()],
    package_data={"legacyga": ["py.typed", "__init__.pyi", "cli/tested.json"]},
    python_requires=">=3.6",
    # What a project has must not change: TensorFlow is the one that is there.
    install_requires=[],
    extras_require={
        "demo": ["scikit-learn", "matplotlib"],
        "test": ["pytest", "hypothesis", "scikit-learn", "matplotlib"],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ]
    + ["Programming Language :: Python :: 3.{}".format(minor) for minor in range(6, 14)],
)
