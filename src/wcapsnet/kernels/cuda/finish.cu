// dx = r (G − mean(G) − x̂ mean(G x̂)) + more, G summed over the capsules that read the same x.
#include "readers.cuh"

struct Finish {
    Means of;
    View g;
    View x;
    View more;  // data null: nothing
    View dx;
    int sum_over;  // capsules
    int images;
    int chunks;
    int positions;
    int per_image;  // positions × chunks
};

KERNEL(256, 6) finish(ARGUMENTS(Finish) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y;
    float* mean = (float*)memory;  // [4][8·chunks]
    float *rstd = mean + a.chunks * 8, *mean_g = rstd + a.chunks * 8, *mean_gx = mean_g + a.chunks * 8;
    for (int i = threadIdx.x; i < a.chunks * 8; i += blockDim.x) {
        float v[4] = {};
        if (i < a.of.channels) means(a.of, n, i, v[0], v[1], v[2], v[3]);
        mean[i] = v[0];
        rstd[i] = v[1];
        mean_g[i] = v[2];
        mean_gx[i] = v[3];
    }
    __syncthreads();
    const int image = blockIdx.x;
    for (int i = blockIdx.z * blockDim.x + threadIdx.x; i < a.per_image; i += gridDim.z * blockDim.x) {
        int q, p;
        if (a.dx.chunk == 8) {
            p = i / a.chunks;
            q = i - p * a.chunks;
        } else {
            q = i / a.positions;
            p = i - q * a.positions;
        }
        float g[8] = {}, x[8];
        for (int k = 0; k < a.sum_over; k++) {
            float one[8];
            unpack(__ldg((const uint4*)(at(a.g, q, image, n + k) + p * a.g.position)), one);
#pragma unroll
            for (int e = 0; e < 8; e++) g[e] += one[e];
        }
        unpack(__ldg((const uint4*)(at(a.x, q, image, n) + p * a.x.position)), x);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int c = q * 8 + e;
            g[e] = rstd[c] * (g[e] - mean_g[c] - (x[e] - mean[c]) * rstd[c] * mean_gx[c]);
        }
        if (a.more.data) {
            float more[8];
            unpack(__ldg((const uint4*)(at(a.more, q, image, n) + p * a.more.position)), more);
#pragma unroll
            for (int e = 0; e < 8; e++) g[e] += more[e];
        }
        *(uint4*)(at(a.dx, q, image, n) + p * a.dx.position) = pack(g);
    }
}
