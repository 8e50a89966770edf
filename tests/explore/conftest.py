import pytest
from explore_helpers import classifier_of, images_of, serving


@pytest.fixture(scope="package")
def classifier():
    return classifier_of()


@pytest.fixture(scope="module")
def asker(classifier):
    with serving(classifier, images_of(classifier)) as asker:
        yield asker
