// The readers of some channels, and the statistics of their gradients.
#include "primitives.cuh"

#define LAYERS 20

// One layer that reads the channels.
struct Reader {
    const bf16* gradient;  // of its output
    const unsigned* weights;  // [n][chunk read][chunk made][tap][lane]
    const float* gamma;  // (n, channels)
    const float* beta;
    float* dgamma;
    float* dbeta;
    int channels;
    int chunks;  // it reads
};

// The sources of Σ G and Σ G x̂ of some channels.
struct Means {
    Reader reader[LAYERS];
    int readers;
    int repeats;  // capsules that read the same channels
    int channel;  // of the readers' numbering: the first one
    int channels;
    Statistics statistics;
    float count;
    float eps;
};

device_function void means(const Means& a, int n, int channel, float& mean, float& rstd, float& g, float& gx) {
    mean_and_rstd(a.statistics, n, channel, a.count, a.eps, mean, rstd);
    g = gx = 0;
    for (int l = 0; l < a.readers; l++)
        for (int more = 0; more < a.repeats; more++) {
            int place = (n + more) * a.reader[l].channels + a.channel + channel;
            g += a.reader[l].gamma[place] * a.reader[l].dbeta[place];
            gx += a.reader[l].gamma[place] * a.reader[l].dgamma[place];
        }
    g /= a.count;
    gx /= a.count;
}
