// The end of CapsTrans: the batch norm that a level's capsules share, then tilt (Eq. 2) or squash (Eq. 1) of every
// capsule vector. LANES lanes hold a vector of 8·CHUNKS elements, eight each.
#include "primitives.cuh"

struct Vectors {
    const bf16* z;  // (vectors, k)
    bf16* c;
    const bf16* dc;
    bf16* g;  // γ dy: the gradient behind the norm, to be finished
    int vectors;
    int squash;  // else tilt
    int norm;  // 1: statistics of the batch; 2: the running ones
    Statistics statistics;
    const float* gamma;
    const float* beta;
    float* running_mean;
    float* running_var;
    float* dgamma;
    float* dbeta;
    float count;
    float eps;
    float momentum;
};

device_function float over_vector(float x) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) x += shuffle_xor(x, distance);
    return x;
}

struct Norm {
    float mean[8], rstd[8], gamma[8], beta[8];
};

device_function void read_norm(const Vectors& a, int chunk, Norm& norm, bool update) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
        int k = chunk * 8 + e;
        norm.mean[e] = norm.rstd[e] = norm.gamma[e] = norm.beta[e] = 0;
        if (chunk >= CHUNKS) continue;
        if (a.norm == 1) {
            mean_and_rstd(a.statistics, 0, k, a.count, a.eps, norm.mean[e], norm.rstd[e]);
            if (update)
                remember(a.running_mean + k, a.running_var + k, norm.mean[e], norm.rstd[e], a.count, a.eps, a.momentum);
        } else {
            norm.mean[e] = a.running_mean[k];
            norm.rstd[e] = rsqrt_of(a.running_var[k] + a.eps);
        }
        norm.gamma[e] = a.gamma[k];
        norm.beta[e] = a.beta[k];
    }
}

// y and, for tilt, p = softmax(y); for squash, p[0] = ‖y‖². Lanes beyond the vector's end hold zeros.
device_function void normalised(const Vectors& a, const Norm& norm, const uint4& z, bool there, float (&x)[8], float (&y)[8],
                                float (&p)[8]) {
    unpack(z, x);
    float s = 0, largest = -3e38f;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        x[e] = (x[e] - norm.mean[e]) * norm.rstd[e];
        y[e] = x[e] * norm.gamma[e] + norm.beta[e];
        if (there) largest = max(largest, y[e]);
    }
    if (a.squash) {
#pragma unroll
        for (int e = 0; e < 8; e++) s += y[e] * y[e];
        p[0] = over_vector(s);
        return;
    }
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) largest = max(largest, shuffle_xor(largest, distance));
#pragma unroll
    for (int e = 0; e < 8; e++) s += p[e] = there ? __expf(y[e] - largest) : 0.f;
    s = 1 / over_vector(s);
#pragma unroll
    for (int e = 0; e < 8; e++) p[e] *= s;
}

KERNEL(256, 2) vectors_forward(ARGUMENTS(Vectors) a) {
    const int chunk = threadIdx.x % LANES, per_block = blockDim.x / LANES;
    Norm norm;
    read_norm(a, chunk, norm, blockIdx.x == 0 && threadIdx.x < LANES);
    for (int base = blockIdx.x * per_block; base < a.vectors; base += gridDim.x * per_block) {
        int vector = base + threadIdx.x / LANES;
        bool there = vector < a.vectors && chunk < CHUNKS;
        long long place = (long long)vector * CHUNKS * 8 + chunk * 8;
        float x[8], y[8], p[8];
        normalised(a, norm, there ? __ldg((const uint4*)(a.z + place)) : make_uint4(0, 0, 0, 0), there, x, y, p);
        float length = a.squash ? sqrtf(p[0] + 1e-12f) / (1 + p[0]) : 0.f;
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] *= a.squash ? length : 0.5f * (1 + p[e]);
        if (there) *(uint4*)(a.c + place) = pack(y);
    }
}

KERNEL(256, 2) vectors_backward(ARGUMENTS(Vectors) a) {
    SHARED_MEMORY(memory);
    float* sums = (float*)memory;  // [dβ, dγ][8·CHUNKS]
    const int chunk = threadIdx.x % LANES, per_block = blockDim.x / LANES;
    for (int i = threadIdx.x; i < 16 * CHUNKS; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    Norm norm;
    read_norm(a, chunk, norm, false);
    float dbeta[8] = {}, dgamma[8] = {};
    for (int base = blockIdx.x * per_block; base < a.vectors; base += gridDim.x * per_block) {
        int vector = base + threadIdx.x / LANES;
        bool there = vector < a.vectors && chunk < CHUNKS;
        long long place = (long long)vector * CHUNKS * 8 + chunk * 8;
        float x[8], y[8], p[8], d[8];
        normalised(a, norm, there ? __ldg((const uint4*)(a.z + place)) : make_uint4(0, 0, 0, 0), there, x, y, p);
        unpack(there ? __ldg((const uint4*)(a.dc + place)) : make_uint4(0, 0, 0, 0), d);
        float along = 0;
        if (a.squash) {
#pragma unroll
            for (int e = 0; e < 8; e++) along += d[e] * y[e];
            along = over_vector(along);
            float root = sqrtf(p[0] + 1e-12f), length = root / (1 + p[0]);
            float slope = 1 / (root * (1 + p[0])) - 2 * root / ((1 + p[0]) * (1 + p[0]));  // 2 d length / d‖y‖²
#pragma unroll
            for (int e = 0; e < 8; e++) d[e] = length * d[e] + y[e] * slope * along;
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) along += d[e] * y[e] * p[e];
            along = over_vector(along);
#pragma unroll
            for (int e = 0; e < 8; e++) d[e] = 0.5f * ((1 + p[e]) * d[e] + p[e] * (d[e] * y[e] - along));
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            d[e] = there ? d[e] : 0.f;
            dbeta[e] += d[e];
            dgamma[e] += d[e] * x[e];
            d[e] *= norm.gamma[e];
        }
        if (there) *(uint4*)(a.g + place) = pack(d);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2) {
            dbeta[e] += shuffle_xor(dbeta[e], distance);
            dgamma[e] += shuffle_xor(dgamma[e], distance);
        }
        if (threadIdx.x % 32 < LANES && chunk < CHUNKS) {
            atomicAdd(sums + chunk * 8 + e, dbeta[e]);
            atomicAdd(sums + (CHUNKS + chunk) * 8 + e, dgamma[e]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * CHUNKS; i += blockDim.x)
        atomicAdd(i < 8 * CHUNKS ? a.dbeta + i : a.dgamma + i - 8 * CHUNKS, sums[i]);
}
