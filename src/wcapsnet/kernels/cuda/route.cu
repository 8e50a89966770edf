// From a critic's output for an image's N capsules to the next level's input: norm and sigmoid (Eq. 5), noise,
// weights b (Eq. 6 or 7), dropout, x = Σ_n b_n c_n (Eq. 13); and the backward pass. The kernels at the end do the same with
// a weight for each block and position (D39): raw, given, a, b, applied and noisy then have the shape (m, n, position).
#include "fitness.cuh"

#define CAPSULES 64

struct Route {
    const bf16* raw;  // (m, n, 8): the critic's last convolution, the first of eight
    const float* given;  // (m, n): the fitness, if there is no critic
    const bf16* c;  // (m, n, values)
    bf16* x;  // (chunk, m, position, 8)
    float* a;  // (m, n)
    float* b;
    float* applied;  // b after dropout
    float* noisy;  // a after noise
    float* x_sum;  // Σx, Σx² over images and positions, or null
    float* x_square;
    const bf16* dx;  // as x
    const float* da;  // from the loss; null: nothing
    const float* db;
    bf16* dc;
    float* noisy_gradient;  // (m, n): db̃, summed over parts
    bf16* g;  // (m, n, 8): γ · the gradient behind the norm
    float* dgamma;
    float* dbeta;
    int images;
    int capsules;
    int values;  // positions × k
    int k;
    int running;
    int update;
    int normalized;  // Eq. 7, else Eq. 6
    float sharpness;  // multiplies the fitness before that
    const float* growing;  // current sharpness while it grows in training; else null
    int detach;  // 1: the weights receive no gradient from later levels
    float share;  // share of the fitness values with added noise
    float std;
    float keep;
    const long long* seed;
    int salt;
    Statistics statistics;  // of raw, as (n·m) samples of one channel
    const float* gamma;
    const float* beta;
    float* running_mean;
    float* running_var;
    float count;
    float eps;
    float momentum;
};

// One block per part of an image; every block computes the image's weights itself.
KERNEL(256, 4) route_forward(ARGUMENTS(Route) a) {
    SHARED_MEMORY(memory);
    float* b = (float*)memory;  // [CAPSULES] as applied
    float* noisy = b + CAPSULES;
    float* kept = noisy + CAPSULES;  // [threads][16]
    const int m = blockIdx.x, n = threadIdx.x;
    float mean, rstd;
    norm_of(a, mean, rstd);
    if (a.update && m == 0 && blockIdx.y == 0 && n == 0)
        remember(a.running_mean, a.running_var, mean, rstd, a.count, a.eps, a.momentum);
    const long long row = (long long)m * a.capsules;
    float fitness = 0;
    if (n < a.capsules) noisy[n] = fitness = fitness_of(a, row + n, mean, rstd);
    __syncthreads();
    float value = fitness;
    if (n < a.capsules && a.share > 0) {
        float largest = noisy[0];
        for (int i = 1; i < a.capsules; i++) largest = max(largest, noisy[i]);
        const unsigned place = (unsigned)(row + n) * 4;
        if (uniform(hashed(*a.seed, a.salt, place)) < a.share)
            value += normal(hashed(*a.seed, a.salt, place + 1), hashed(*a.seed, a.salt, place + 2)) * a.std * largest;
    }
    __syncthreads();
    if (n < a.capsules) noisy[n] = value;
    __syncthreads();
    if (n < a.capsules) {
        float largest = noisy[0], sum = 0;
        for (int i = 1; i < a.capsules; i++) largest = max(largest, noisy[i]);
        for (int i = 0; i < a.capsules; i++) sum += unnormalised(a, noisy[i], largest);
        float weight = unnormalised(a, value, largest) / sum;
        bool dropped = a.keep < 1 && uniform(hashed(*a.seed, a.salt, (unsigned)(row + n) * 4 + 3)) >= a.keep;
        b[n] = dropped ? 0.f : weight / a.keep;
        if (blockIdx.y == 0) {
            a.a[row + n] = fitness;
            a.b[row + n] = weight;
            a.applied[row + n] = b[n];
            a.noisy[row + n] = value;
        }
    }
    __syncthreads();
    const int vectors = a.values / 8, chunks = a.k / 8, positions = vectors / chunks;
    float sum[8] = {}, square[8] = {};
    // Each thread handles only one chunk of channels: the block uses a multiple of `chunks` threads.
    const int active = blockDim.x / chunks * chunks, step = active * gridDim.y;
    if ((int)threadIdx.x < active)
        for (int i = blockIdx.y * active + threadIdx.x; i < vectors; i += step) {
            float x[8] = {};
            for (int k = 0; k < a.capsules; k++) {
                float c[8];
                unpack(__ldg((const uint4*)(a.c + ((row + k) * vectors + i) * 8)), c);
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] += b[k] * c[e];
            }
            uint4 v = pack(x);
            *(uint4*)(a.x + (((long long)(i % chunks) * a.images + m) * positions + i / chunks) * 8) = v;
            unpack(v, x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += x[e];
                square[e] += x[e] * x[e];
            }
        }
    if (!a.x_sum) return;
    add_by_chunk(sum, square, active, chunks, kept, a.x_sum, a.x_square);
}

// dc = b̃ dx;  db̃_n = Σ dx c_n: one block per part of an image.
KERNEL(256, 4) route_backward(ARGUMENTS(Route) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [warp][CAPSULES]
    const int m = blockIdx.x, vectors = a.values / 8, chunks = a.k / 8, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)m * a.capsules;
    for (int i = threadIdx.x; i < (int)blockDim.x / 32 * CAPSULES; i += blockDim.x) kept[i] = 0;
    __syncthreads();
    const int most = (vectors + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * most, end = min(begin + most, vectors);
    for (int base = begin; base < end; base += blockDim.x) {
        const int i = base + threadIdx.x;
        const bool there = i < end;
        float d[8] = {};
        if (there) unpack(__ldg((const uint4*)(a.dx + (((long long)(i % chunks) * a.images + m) * (vectors / chunks) + i / chunks) * 8)), d);
        for (int k = 0; k < a.capsules; k++) {
            float c[8] = {}, dot = 0, to[8];
            const float b = a.applied[row + k];
            if (there) unpack(__ldg((const uint4*)(a.c + ((row + k) * vectors + i) * 8)), c);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                dot += d[e] * c[e];
                to[e] = b * d[e];
            }
            if (there) *(uint4*)(a.dc + ((row + k) * vectors + i) * 8) = pack(to);
            dot = over_warp(dot);
            if (lane == 0) kept[warp * CAPSULES + k] += dot;
        }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < a.capsules; k += blockDim.x) {
        float total = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) total += kept[w * CAPSULES + k];
        atomicAdd(a.noisy_gradient + row + k, total);
    }
}

// Back through dropout, weights, noise and sigmoid: one thread per capsule of an image.
KERNEL(256, 4) weights_backward(ARGUMENTS(Route) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;
    const int i = blockIdx.x * blockDim.x + threadIdx.x, total = a.images * a.capsules;
    float mean, rstd, dbeta = 0, dgamma = 0;
    norm_of(a, mean, rstd);
    if (i < total) {
        const int m = i / a.capsules;
        const long long row = (long long)m * a.capsules;
        // b̃ = b·s with s = 0 or 1/keep. Later levels train b unless `detach` is set; the loss always does.
        float along = 0, own = 0, sum = 0;
        for (int k = 0; k < a.capsules; k++) {
            float b = a.b[row + k], s = a.keep < 1 ? (a.applied[row + k] != 0 ? 1 / a.keep : 0.f) : 1.f;
            float db = (a.detach ? 0.f : a.noisy_gradient[row + k] * s) + (a.db ? a.db[row + k] : 0.f);
            along += b * db;
            sum += at_least_none(a.noisy[row + k] * sharpness_of(a));
            if (row + k == i) own = db;
        }
        float d = a.normalized ? (a.noisy[i] >= 0 ? (own - along) / sum : 0.f) : a.b[i] * (own - along);
        d = d * sharpness_of(a) + (a.da ? a.da[i] : 0.f);
        float fitness = a.a[i];
        d *= fitness * (1 - fitness);
        float raw = low_half(*(const unsigned*)(a.raw + (long long)i * 8));
        dbeta = d;
        dgamma = d * (raw - mean) * rstd;
        float out[8] = {d * *a.gamma};
        *(uint4*)(a.g + (long long)i * 8) = pack(out);
    }
    dbeta = over_block(dbeta, kept);
    dgamma = over_block(dgamma, kept);
    if (threadIdx.x == 0) {
        atomicAdd(a.dbeta, dbeta);
        atomicAdd(a.dgamma, dgamma);
    }
}

// Fitness and weights at the positions of one thread block, then the weighted sum. b holds the weights at a position divided
// by the number of positions, so that all weights of an image sum to 1; `applied` holds those that multiply c.
KERNEL(256, 4) positions_forward(ARGUMENTS(Route) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [threads][16]
    float* b = kept + blockDim.x * 16;  // [capsules][most] as applied
    const int m = blockIdx.x, chunks = a.k / 8, positions = a.values / a.k;
    const int most = (positions + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * most, end = min(begin + most, positions);
    const long long row = (long long)m * a.capsules * positions;
    float mean, rstd, largest = -3e38f;
    norm_of(a, mean, rstd);
    if (a.update && m == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        remember(a.running_mean, a.running_var, mean, rstd, a.count, a.eps, a.momentum);
    if (a.share > 0) {
        for (int i = threadIdx.x; i < a.capsules * positions; i += blockDim.x) largest = max(largest, fitness_of(a, row + i, mean, rstd));
        largest = largest_of_block(largest, kept);
    }
    for (int p = begin + threadIdx.x; p < end; p += blockDim.x) {
        float top = -3e38f, sum = 0;
        for (int n = 0; n < a.capsules; n++) {
            const long long i = row + n * positions + p;
            const unsigned place = (unsigned)i * 4;
            const float fitness = fitness_of(a, i, mean, rstd);
            float value = fitness;
            if (a.share > 0 && uniform(hashed(*a.seed, a.salt, place)) < a.share)
                value += normal(hashed(*a.seed, a.salt, place + 1), hashed(*a.seed, a.salt, place + 2)) * a.std * largest;
            a.a[i] = fitness;
            a.noisy[i] = value;
            top = max(top, value);
        }
        for (int n = 0; n < a.capsules; n++) sum += unnormalised(a, a.noisy[row + n * positions + p], top);
        for (int n = 0; n < a.capsules; n++) {
            const long long i = row + n * positions + p;
            const float weight = unnormalised(a, a.noisy[i], top) / sum;
            const bool dropped = a.keep < 1 && uniform(hashed(*a.seed, a.salt, (unsigned)i * 4 + 3)) >= a.keep;
            a.b[i] = weight / positions;
            a.applied[i] = b[n * most + p - begin] = dropped ? 0.f : weight / a.keep;
        }
    }
    __syncthreads();
    float sum[8] = {}, square[8] = {};
    const int active = blockDim.x / chunks * chunks;  // each thread handles only one chunk of channels
    if ((int)threadIdx.x < active)
        for (int i = begin * chunks + threadIdx.x; i < end * chunks; i += active) {
            const int p = i / chunks;
            float x[8] = {};
            for (int n = 0; n < a.capsules; n++) {
                float c[8];
                unpack(__ldg((const uint4*)(a.c + (((long long)m * a.capsules + n) * positions * chunks + i) * 8)), c);
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] += b[n * most + p - begin] * c[e];
            }
            uint4 v = pack(x);
            *(uint4*)(a.x + (((long long)(i % chunks) * a.images + m) * positions + p) * 8) = v;
            unpack(v, x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += x[e];
                square[e] += x[e] * x[e];
            }
        }
    if (!a.x_sum) return;
    add_by_chunk(sum, square, active, chunks, kept, a.x_sum, a.x_square);
}

// dc = b̃ dx;  db̃_np = Σ_k dx_pk c_npk;  then back through dropout, weights, noise and sigmoid.
KERNEL(256, 4) positions_backward(ARGUMENTS(Route) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [32]
    float* db = kept + 32;  // [capsules][most]
    const int m = blockIdx.x, chunks = a.k / 8, positions = a.values / a.k;
    const int most = (positions + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * most, end = min(begin + most, positions);
    const long long row = (long long)m * a.capsules * positions;
    for (int i = threadIdx.x; i < a.capsules * most; i += blockDim.x) db[i] = 0;
    __syncthreads();
    for (int i = begin * chunks + threadIdx.x; i < end * chunks; i += blockDim.x) {
        const int p = i / chunks;
        float d[8];
        unpack(__ldg((const uint4*)(a.dx + (((long long)(i % chunks) * a.images + m) * positions + p) * 8)), d);
        for (int n = 0; n < a.capsules; n++) {
            const long long place = ((row + n * positions) * chunks + i) * 8;
            const float b = a.applied[row + n * positions + p];
            float c[8], dot = 0, to[8];
            unpack(__ldg((const uint4*)(a.c + place)), c);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                dot += d[e] * c[e];
                to[e] = b * d[e];
            }
            *(uint4*)(a.dc + place) = pack(to);
            atomicAdd(db + n * most + p - begin, dot);
        }
    }
    if (a.given) return;
    __syncthreads();
    float mean, rstd, dbeta = 0, dgamma = 0;
    norm_of(a, mean, rstd);
    for (int p = begin + threadIdx.x; p < end; p += blockDim.x) {
        float along = 0, sum = 0;
        for (int n = 0; n < a.capsules; n++) {
            const long long i = row + n * positions + p;
            float& own = db[n * most + p - begin];
            const float s = a.keep < 1 ? (a.applied[i] != 0 ? 1 / a.keep : 0.f) : 1.f;
            own = (a.detach ? 0.f : own * s) + (a.db ? a.db[i] / positions : 0.f);
            along += a.b[i] * positions * own;
            sum += at_least_none(a.noisy[i] * sharpness_of(a));
        }
        for (int n = 0; n < a.capsules; n++) {
            const long long i = row + n * positions + p;
            const float own = db[n * most + p - begin];
            float d = a.normalized ? (a.noisy[i] >= 0 ? (own - along) / sum : 0.f) : a.b[i] * positions * (own - along);
            d = d * sharpness_of(a) + (a.da ? a.da[i] : 0.f);
            const float fitness = a.a[i], raw = low_half(*(const unsigned*)(a.raw + i * 8));
            d *= fitness * (1 - fitness);
            dbeta += d;
            dgamma += d * (raw - mean) * rstd;
            float out[8] = {d * *a.gamma};
            *(uint4*)(a.g + i * 8) = pack(out);
        }
    }
    dbeta = over_block(dbeta, kept);
    dgamma = over_block(dgamma, kept);
    if (threadIdx.x == 0) {
        atomicAdd(a.dbeta, dbeta);
        atomicAdd(a.dgamma, dgamma);
    }
}
