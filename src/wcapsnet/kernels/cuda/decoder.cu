// The two ends of the decoder: the linear layer to the patch, and the mean squared error of the output.
#include "primitives.cuh"

struct Linear {
    const float* vector;  // (m, k)
    const float* position;  // (m, 2)
    const float* w;  // (channels · positions, k + 2)
    const float* b;
    bf16* y;  // (m, position, channel)
    float* sum;  // Σy, Σy² of every channel
    float* square;
    const bf16* dy;
    float* dvector;
    float* dw;
    float* db;
    int images;
    int k;
    int channels;
    int positions;
};

KERNEL(256, 4) linear_forward(ARGUMENTS(Linear) a) {
    SHARED_MEMORY(memory);
    float* in = (float*)memory;  // [k + 2]
    float* kept = in + (a.k + 5) / 4 * 4;  // [threads][16]
    const int m = blockIdx.x, width = a.k + 2, chunks = a.channels / 8;
    for (int q = threadIdx.x; q < width; q += blockDim.x) in[q] = q < a.k ? a.vector[m * a.k + q] : a.position[m * 2 + q - a.k];
    __syncthreads();
    // Each thread handles only one chunk of channels: the block uses a multiple of `chunks` threads.
    const int active = blockDim.x / chunks * chunks;
    float sum[8] = {}, square[8] = {};
    if ((int)threadIdx.x < active)
        for (int i = threadIdx.x; i < a.positions * chunks; i += active) {
            const int p = i / chunks, chunk = i % chunks;
            float y[8];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int j = (chunk * 8 + e) * a.positions + p;
                y[e] = a.b[j];
                for (int q = 0; q < width; q++) y[e] += a.w[j * width + q] * in[q];
            }
            uint4 v = pack(y);
            *(uint4*)(a.y + ((long long)m * a.positions * chunks + i) * 8) = v;
            unpack(v, y);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += y[e];
                square[e] += y[e] * y[e];
            }
        }
    add_by_chunk(sum, square, active, chunks, kept, a.sum, a.square);
}

device_function float one(const bf16* p) { return from_bits((unsigned)*p << 16); }

// dvector = wᵀ dy: a block is an image. ELEMENTS: k.
KERNEL(256, 4) linear_backward(ARGUMENTS(Linear) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [warp][k]
    const int m = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, outputs = a.channels * a.positions;
    float sum[ELEMENTS] = {};
    for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
        const float d = one(a.dy + (long long)m * outputs + i);
        const float* w = a.w + (i % a.channels * a.positions + i / a.channels) * (ELEMENTS + 2);
#pragma unroll
        for (int q = 0; q < ELEMENTS; q++) sum[q] += d * w[q];
    }
#pragma unroll
    for (int q = 0; q < ELEMENTS; q++) {
        const float total = over_warp(sum[q]);
        if (lane == 0) kept[warp * ELEMENTS + q] = total;
    }
    __syncthreads();
    for (int q = threadIdx.x; q < ELEMENTS; q += blockDim.x) {
        float total = 0;
        for (int k = 0; k < (int)blockDim.x / 32; k++) total += kept[k * ELEMENTS + q];
        a.dvector[m * ELEMENTS + q] = total;
    }
}

// dw and db: one thread per output, for some images; initialised with zeros.
KERNEL(64, 4) linear_weights(ARGUMENTS(Linear) a) {
    const int outputs = a.channels * a.positions, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outputs) return;
    float sum[ELEMENTS + 3] = {};
#pragma unroll 4
    for (int m = blockIdx.y; m < a.images; m += gridDim.y) {
        const float d = one(a.dy + (long long)m * outputs + i);
#pragma unroll
        for (int q = 0; q < ELEMENTS; q++) sum[q] += d * a.vector[m * ELEMENTS + q];
        sum[ELEMENTS] += d * a.position[m * 2];
        sum[ELEMENTS + 1] += d * a.position[m * 2 + 1];
        sum[ELEMENTS + 2] += d;
    }
    const int j = i % a.channels * a.positions + i / a.channels;
#pragma unroll
    for (int q = 0; q < ELEMENTS + 2; q++) atomicAdd(a.dw + j * (ELEMENTS + 2) + q, sum[q]);
    atomicAdd(a.db + j, sum[ELEMENTS + 2]);
}

struct Square {
    const bf16* y;  // (m, position in a map that may be larger, 8)
    const float* images;  // (m, channels, height, width)
    float* loss;  // added to
    const float* gradient;
    bf16* dy;
    int count;
    int channels;
    int height;
    int width;
    int map_height;
    int map_width;
};

device_function void differences(const Square& a, int m, int i, float (&d)[8]) {
    float y[8];
    unpack(__ldg((const uint4*)(a.y + ((long long)m * a.map_height * a.map_width + i) * 8)), y);
    const int row = i / a.map_width, column = i % a.map_width;
#pragma unroll
    for (int e = 0; e < 8; e++)
        d[e] = e < a.channels && row < a.height && column < a.width
                   ? y[e] - a.images[(((long long)m * a.channels + e) * a.height + row) * a.width + column]
                   : 0.f;
}

KERNEL(256, 4) square_forward(ARGUMENTS(Square) a) {
    SHARED_MEMORY(memory);
    float sum = 0;
    for (int i = threadIdx.x; i < a.map_height * a.map_width; i += blockDim.x) {
        float d[8];
        differences(a, blockIdx.x, i, d);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += d[e] * d[e];
    }
    sum = over_block(sum, (float*)memory);
    if (threadIdx.x == 0) atomicAdd(a.loss, sum / ((float)a.count * a.channels * a.height * a.width));
}

KERNEL(256, 4) square_backward(ARGUMENTS(Square) a) {
    const float by = *a.gradient * 2 / ((float)a.count * a.channels * a.height * a.width);
    for (int i = threadIdx.x; i < a.map_height * a.map_width; i += blockDim.x) {
        float d[8];
        differences(a, blockIdx.x, i, d);
#pragma unroll
        for (int e = 0; e < 8; e++) d[e] *= by;
        *(uint4*)(a.dy + ((long long)blockIdx.x * a.map_height * a.map_width + i) * 8) = pack(d);
    }
}
