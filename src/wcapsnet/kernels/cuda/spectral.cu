// The spectral norms of all critics' kernels at once, one block each: w (rows, columns), σ = uᵀ w v.
#include "primitives.cuh"

#define MATRICES 32

struct Matrix {
    const float* w;
    float* u;
    float* v;
    float* sigma;
    float* dw;  // in: the gradient of w / σ; out: that of w
    const float* dot;  // Σ dw∘w
    int rows;
    int columns;
};

struct Spectral {
    Matrix matrix[MATRICES];
    int iterate;  // 1: one power iteration first, as in training
};

KERNEL(512, 1) spectral(ARGUMENTS(Spectral) all) {
    SHARED_MEMORY(memory);
    const Matrix& a = all.matrix[blockIdx.x];
    float* kept = (float*)memory;  // one float per warp
    float* u = kept + 32;
    float* v = u + a.rows;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int r = threadIdx.x; r < a.rows; r += blockDim.x) u[r] = a.u[r];
    for (int c = threadIdx.x; c < a.columns; c += blockDim.x) v[c] = a.v[c];
    __syncthreads();
    if (all.iterate) {  // v = wᵀu / ‖wᵀu‖
        float square = 0;
        for (int c = threadIdx.x; c < a.columns; c += blockDim.x) {
            float x = 0;
            for (int r = 0; r < a.rows; r++) x += a.w[(long long)r * a.columns + c] * u[r];
            v[c] = x;
            square += x * x;
        }
        float length = max(sqrtf(over_block(square, kept)), 1e-12f);
        for (int c = threadIdx.x; c < a.columns; c += blockDim.x) a.v[c] = v[c] /= length;
        __syncthreads();
    }
    float along = 0, square = 0;  // uᵀ w v with the old u; ‖w v‖²
    for (int r = warp; r < a.rows; r += warps) {
        float x = 0;
        for (int c = lane; c < a.columns; c += 32) x += a.w[(long long)r * a.columns + c] * v[c];
        x = over_warp(x);
        if (lane == 0) {
            along += u[r] * x;
            square += x * x;
            u[r] = x;
        }
    }
    along = over_block(along, kept);
    square = over_block(square, kept);
    if (all.iterate) {  // u = w v / ‖w v‖, so uᵀ w v = ‖w v‖
        float length = max(sqrtf(square), 1e-12f);
        for (int r = threadIdx.x; r < a.rows; r += blockDim.x) a.u[r] = u[r] / length;
        along = square / length;
    }
    if (threadIdx.x == 0) *a.sigma = along;
}

// dw = dŵ/σ − (Σ dŵ∘w)/σ² · u vᵀ
KERNEL(256, 4) spectral_backward(ARGUMENTS(Spectral) all) {
    const Matrix& a = all.matrix[blockIdx.x];
    const float by = 1 / max(*a.sigma, 1e-12f), dot = *a.dot * by;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < a.rows * a.columns; i += gridDim.y * blockDim.x)
        a.dw[i] = by * (a.dw[i] - dot * a.u[i / a.columns] * a.v[i % a.columns]);
}
