// A critic's output, one number per capsule, through its norm and a sigmoid (Eq. 5), or a given fitness; and its weight.
#include "primitives.cuh"

template <class Said>
device_function void norm_of(const Said& a, float& mean, float& rstd) {
    if (a.given) {
        mean = rstd = 0;
    } else if (a.running) {
        mean = *a.running_mean;
        rstd = rsqrt_of(*a.running_var + a.eps);
    } else {
        mean_and_rstd(a.statistics, 0, 0, a.count, a.eps, mean, rstd);
    }
}

template <class Said>
device_function float fitness_of(const Said& a, long long place, float mean, float rstd) {
    if (a.given) return a.given[place];
    return sigmoid((low_half(*(const unsigned*)(a.raw + place * 8)) - mean) * rstd * *a.gamma + *a.beta);
}

template <class Said>
device_function float sharpness_of(const Said& a) {
    return a.growing ? *a.growing : a.sharpness;
}

// Eq. 6 or 7 before the division by the sum over capsules; `most` is the largest fitness.
template <class Said>
device_function float unnormalised(const Said& a, float fitness, float most) {
    return a.normalized ? at_least_none(fitness * sharpness_of(a)) : __expf((fitness - most) * sharpness_of(a));
}
