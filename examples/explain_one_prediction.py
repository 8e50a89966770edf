"""One prediction explained: the weight of every block, and the prediction with each block switched off.

python examples/explain_one_prediction.py
"""

from __future__ import annotations

import wcapsnet
from wcapsnet.data import DataConfig, load_dataset
from wcapsnet.explanations import explain_image


def main() -> str:
    classifier = wcapsnet.load("wcapsnet-mnist")
    data = load_dataset(DataConfig(source="sample", validation=1000))
    picture = data.test.images[0, 0].numpy()  # (28, 28) of uint8

    print(classifier.predict(picture))
    one = explain_image(classifier.network, classifier.preprocess([picture])[0])
    for level, without in enumerate(one.without, start=1):
        weights = one.block_weights(level - 1)
        for block, probabilities in enumerate(without):
            left = probabilities[one.predicted]
            print(f"level {level}, block {block}: weight {weights[block]:.3f}, probability without it {left:.3f}")
    print(one.decoded(classifier.classes))
    return classifier.classes[one.predicted]


if __name__ == "__main__":
    main()
