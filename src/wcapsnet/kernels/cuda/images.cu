// A batch from a dataset on the device: taken, normalised, mirrored and shifted; and an image's channels
// as a chunk of eight.
#include "primitives.cuh"

struct Images {
    const unsigned char* data;  // (all, channels, height, width)
    const long long* labels;
    const long long* index;  // (m,)
    const float* mean;
    const float* std;
    float* images;  // (m, channels, height, width)
    long long* chosen;  // (m,) labels
    int channels;
    int height;
    int width;
    int mirror;
    int shift;  // up to this many pixels in each direction
    const long long* seed;
    int salt;
};

KERNEL(256, 4) take(ARGUMENTS(Images) a) {
    const int m = blockIdx.x, area = a.height * a.width, count = a.channels * area;
    const long long from = a.index[m];
    const unsigned random = hashed(*a.seed, a.salt, m);
    const bool mirrored = a.mirror && random & 1;
    const int places = 2 * a.shift + 1;
    const int down = (random >> 1 & 0x7fff) * places / 0x8000 - a.shift, right = (random >> 16) * places / 0x10000 - a.shift;
    if (threadIdx.x == 0) a.chosen[m] = a.labels[from];
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        int c = i / area, y = i % area / a.width - down, x = i % a.width - right;
        float value = 0;  // padding
        if (y >= 0 && y < a.height && x >= 0 && x < a.width) {
            if (mirrored) x = a.width - 1 - x;
            value = (a.data[from * count + c * area + y * a.width + x] * (1.f / 255) - a.mean[c]) / a.std[c];
        }
        a.images[(long long)m * count + i] = value;
    }
}

struct Chunks {
    const float* images;  // (m, channels, positions)
    bf16* x;  // (m, positions, 8·chunks), zeros beyond the channels
    int channels;
    int positions;
    int chunks;
};

KERNEL(256, 4) to_chunks(ARGUMENTS(Chunks) a) {
    const int m = blockIdx.x;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < a.positions * a.chunks; i += gridDim.y * blockDim.x) {
        int p = i / a.chunks, chunk = i % a.chunks;
        float x[8];
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = chunk * 8 + e < a.channels ? a.images[((long long)m * a.channels + chunk * 8 + e) * a.positions + p] : 0.f;
        *(uint4*)(a.x + ((long long)m * a.positions * a.chunks + i) * 8) = pack(x);
    }
}
