// SGD with Nesterov momentum for many parameters at once: g += λp, v = μv + g, p −= η(g + μv).
#include "primitives.cuh"

#define PARAMETERS 96

struct Parameter {
    float* p;
    const float* g;
    float* v;
    int count;
    float decay;
};

struct Nesterov {
    Parameter parameter[PARAMETERS];
    const float* rate;
    float momentum;
};

KERNEL(256, 8) nesterov(ARGUMENTS(Nesterov) all) {
    const Parameter& a = all.parameter[blockIdx.y];
    const float rate = *all.rate;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * blockDim.x) {
        float p = a.p[i], g = a.g[i] + a.decay * p, v = all.momentum * a.v[i] + g;
        a.v[i] = v;
        a.p[i] = p - rate * (g + all.momentum * v);
    }
}
