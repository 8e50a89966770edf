// The norm of what a critic says: one channel, a number for every capsule.
#include "primitives.cuh"

template <class Said>
device_function void norm_of(const Said& a, float& mean, float& rstd) {
    if (a.running) {
        mean = *a.running_mean;
        rstd = rsqrt_of(*a.running_var + a.eps);
    } else {
        mean_and_rstd(a.statistics, 0, 0, a.count, a.eps, mean, rstd);
    }
}
