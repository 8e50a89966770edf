// The last level: every vector at every position has a fitness and a weight (Eq. 5–7), their weighted sum is projected
// to the classes (Eq. 14), and the best vector is chosen (D36). One block per image.
#include "fitness.cuh"

struct Predict {
    const bf16* raw;  // (m, vectors, 8): the critic's last convolution, the first of eight
    const float* given;  // (m, vectors): the fitness, if there is no critic
    const bf16* c;  // (m, vectors, k)
    const float* w;  // (k, outputs)
    float* a;  // (m, vectors)
    float* b;
    float* noisy;
    float* sum;  // (m, k): Σ b̃ c̃
    float* logits;  // (m, outputs)
    float* vector;  // (m, k) of the best
    float* position;  // (m, 2): x and y in [-1, 1]
    long long* place;  // (m, 3): n, i, j
    const float* da;  // null: nothing
    const float* db;
    const float* dlogits;
    const float* dvector;
    bf16* dc;
    bf16* g;
    float* dgamma;
    float* dbeta;
    int vectors;
    int height;
    int width;
    int k;
    int outputs;
    int classes;
    int running;
    int update;
    int normalized;  // Eq. 7, else Eq. 6
    float sharpness;  // multiplies the fitness before that
    const float* growing;  // current sharpness while it grows in training; else null
    int detach;
    float share;
    float std;
    float keep;  // of b
    float keep_c;  // of c, before the projection
    const long long* seed;
    int salt;
    Statistics statistics;
    const float* gamma;
    const float* beta;
    float* running_mean;
    float* running_var;
    float count;
    float eps;
    float momentum;
};

device_function float dropped(float x, float keep, const Predict& a, unsigned salt, unsigned place) {
    return keep < 1 ? (uniform(hashed(*a.seed, a.salt + salt, place)) < keep ? x / keep : 0.f) : x;
}

// The index of the largest value of a block, the first if tied; 0 if no value is finite.
device_function int index_of_largest(float value, int index, int count, float* kept) {
    const float largest = largest_of_block(value, kept);
    const float first = -largest_of_block(value == largest ? -(float)index : -3e38f, kept);
    return first >= 0 && first < count ? (int)first : 0;
}

// sum[k] = Σ_v weight[v] c_vk, with dropout on c. Warps divide the elements between them.
device_function void weighted_sum(const Predict& a, long long row, const float* weight, float keep_c, float* sum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = warp * 2; k < a.k; k += (int)blockDim.x / 32 * 2) {
        float first = 0, second = 0;
        for (int v = lane; v < a.vectors; v += 32) {
            unsigned two = *(const unsigned*)(a.c + (row + v) * a.k + k);
            const unsigned place = (unsigned)((row + v) * a.k + k);
            first += weight[v] * dropped(low_half(two), keep_c, a, 2, place);
            second += weight[v] * dropped(high_half(two), keep_c, a, 2, place + 1);
        }
        first = over_warp(first);
        second = over_warp(second);
        if (lane == 0) {
            sum[k] = first;
            sum[k + 1] = second;
        }
    }
    __syncthreads();
}

device_function float projected(const Predict& a, const float* sum, int r) {
    float x = 0;
    for (int k = 0; k < a.k; k++) x += sum[k] * a.w[k * a.outputs + r];
    return x;
}

// D36: of the vectors with the largest weight, without noise, the one that adds most to the predicted class.
device_function int best_vector(const Predict& a, long long row, float most, float* value, float* sum, float* kept) {
    float total = 0;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) total += unnormalised(a, a.a[row + v], most);
    total = over_block(total, kept);
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) value[v] = unnormalised(a, a.a[row + v], most) / total;
    __syncthreads();
    weighted_sum(a, row, value, 1.f, sum);
    float largest = -3e38f;
    int index = 0x7fffffff;
    for (int r = threadIdx.x; r < a.classes; r += blockDim.x) {
        const float x = projected(a, sum, r);
        if (x > largest) {
            largest = x;
            index = r;
        }
    }
    const int predicted = index_of_largest(largest, index, a.classes, kept);
    const float enough = 0.99f * unnormalised(a, most, most) / total;  // EQUAL in network/routing.py
    largest = -3e38f;
    index = 0x7fffffff;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        if (value[v] < enough) continue;
        float vote = 0;
        for (int chunk = 0; chunk < a.k; chunk += 8) {
            float c[8];
            unpack(*(const uint4*)(a.c + (row + v) * a.k + chunk), c);
#pragma unroll
            for (int e = 0; e < 8; e++) vote += c[e] * a.w[(chunk + e) * a.outputs + predicted];
        }
        vote *= value[v];
        if (vote > largest) {
            largest = vote;
            index = v;
        }
    }
    return index_of_largest(largest, index, a.vectors, kept);
}

KERNEL(256, 4) predict_forward(ARGUMENTS(Predict) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [32]
    float* value = kept + 32;  // [vectors]: b without noise, then a with noise, then b̃
    float* sum = value + a.vectors;  // [k]
    const int m = blockIdx.x;
    const long long row = (long long)m * a.vectors;
    float mean, rstd, most = -3e38f;
    norm_of(a, mean, rstd);
    if (a.update && m == 0 && threadIdx.x == 0)
        remember(a.running_mean, a.running_var, mean, rstd, a.count, a.eps, a.momentum);
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        const float fitness = fitness_of(a, row + v, mean, rstd);
        a.a[row + v] = fitness;
        most = max(most, fitness);
    }
    most = largest_of_block(most, kept);
    const int best = best_vector(a, row, most, value, sum, kept);
    if (threadIdx.x < 1) {
        int i = best / a.width % a.height, j = best % a.width;
        a.place[m * 3] = best / a.width / a.height;
        a.place[m * 3 + 1] = i;
        a.place[m * 3 + 2] = j;
        a.position[m * 2] = a.width > 1 ? 2.f * j / (a.width - 1) - 1 : 0.f;
        a.position[m * 2 + 1] = a.height > 1 ? 2.f * i / (a.height - 1) - 1 : 0.f;
    }
    for (int k = threadIdx.x; k < a.k; k += blockDim.x) {
        unsigned two = *(const unsigned*)(a.c + (row + best) * a.k + k / 2 * 2);
        a.vector[m * a.k + k] = k % 2 ? high_half(two) : low_half(two);
    }
    float noisy_most = -3e38f;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        const unsigned place = (unsigned)(row + v) * 4;
        value[v] = a.a[row + v];
        if (a.share > 0 && uniform(hashed(*a.seed, a.salt, place)) < a.share)
            value[v] += normal(hashed(*a.seed, a.salt, place + 1), hashed(*a.seed, a.salt, place + 2)) * a.std * most;
        a.noisy[row + v] = value[v];
        noisy_most = max(noisy_most, value[v]);
    }
    noisy_most = largest_of_block(noisy_most, kept);
    float total = 0;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) total += unnormalised(a, value[v], noisy_most);
    total = over_block(total, kept);
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        const float b = unnormalised(a, value[v], noisy_most) / total;
        a.b[row + v] = b;
        value[v] = dropped(b, a.keep, a, 1, (unsigned)(row + v));
    }
    __syncthreads();
    weighted_sum(a, row, value, a.keep_c, sum);
    for (int k = threadIdx.x; k < a.k; k += blockDim.x) a.sum[m * a.k + k] = sum[k];
    for (int r = threadIdx.x; r < a.outputs; r += blockDim.x) a.logits[m * a.outputs + r] = projected(a, sum, r);
}

KERNEL(256, 4) predict_backward(ARGUMENTS(Predict) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [32]
    float* weight = kept + 32;  // [vectors]: db
    float* sum = weight + a.vectors;  // [k]: the gradient of Σ b̃ c̃
    const int m = blockIdx.x;
    const long long row = (long long)m * a.vectors;
    float mean, rstd;
    norm_of(a, mean, rstd);
    for (int k = threadIdx.x; k < a.k; k += blockDim.x) {
        float x = 0;
        for (int r = 0; r < a.outputs; r++) x += a.dlogits[m * a.outputs + r] * a.w[k * a.outputs + r];
        sum[k] = x;
    }
    __syncthreads();
    const int chosen = (int)((a.place[m * 3] * a.height + a.place[m * 3 + 1]) * a.width + a.place[m * 3 + 2]);
    float along = 0, total = 0;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        const float b = a.b[row + v], applied = dropped(b, a.keep, a, 1, (unsigned)(row + v));
        float db = 0;
        for (int chunk = 0; chunk < a.k; chunk += 8) {
            float c[8], d[8];
            unpack(*(const uint4*)(a.c + (row + v) * a.k + chunk), c);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const unsigned place = (unsigned)((row + v) * a.k + chunk + e);
                db += dropped(c[e], a.keep_c, a, 2, place) * sum[chunk + e];
                d[e] = dropped(applied * sum[chunk + e], a.keep_c, a, 2, place);
                if (v == chosen && a.dvector) d[e] += a.dvector[m * a.k + chunk + e];
            }
            *(uint4*)(a.dc + (row + v) * a.k + chunk) = pack(d);
        }
        db = a.detach ? 0.f : dropped(db, a.keep, a, 1, (unsigned)(row + v));
        if (a.db) db += a.db[row + v];
        weight[v] = db;
        along += b * db;
        total += at_least_none(a.noisy[row + v] * sharpness_of(a));
    }
    if (a.given) return;
    along = over_block(along, kept);
    total = over_block(total, kept);
    float dbeta = 0, dgamma = 0;
    for (int v = threadIdx.x; v < a.vectors; v += blockDim.x) {
        float d = a.normalized ? (a.noisy[row + v] >= 0 ? (weight[v] - along) / total : 0.f) : a.b[row + v] * (weight[v] - along);
        d = d * sharpness_of(a) + (a.da ? a.da[row + v] : 0.f);
        float fitness = a.a[row + v];
        d *= fitness * (1 - fitness);
        float raw = low_half(*(const unsigned*)(a.raw + (row + v) * 8));
        dbeta += d;
        dgamma += d * (raw - mean) * rstd;
        float out[8] = {d * *a.gamma};
        *(uint4*)(a.g + (row + v) * 8) = pack(out);
    }
    dbeta = over_block(dbeta, kept);
    dgamma = over_block(dgamma, kept);
    if (threadIdx.x == 0) {
        atomicAdd(a.dbeta, dbeta);
        atomicAdd(a.dgamma, dgamma);
    }
}
