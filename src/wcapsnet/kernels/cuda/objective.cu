// Eq. 15 and its gradient: cross entropy, the Wasserstein loss of every level (Eq. 4, 8–12), reconstruction.
// One block: a batch is small, and every image's part depends on sums over all.
#include "primitives.cuh"

#define LEVELS 16

struct Judged {
    const float* a;  // (m, capsules)
    const float* b;
    float* da;
    float* db;
    int capsules;
};

struct Objective {
    Judged level[LEVELS];
    int levels;
    const float* logits;  // (m, outputs)
    const long long* labels;
    const float* reconstruction;  // the mean square already
    float* cos;  // (m,)
    float* terms;  // total, cross entropy, Wasserstein, reconstruction
    double* sums;  // the terms, accuracy, 1: added up; or null
    const float* gradient;  // of the total; null: only the terms are wanted
    float* dlogits;
    int images;
    int outputs;
    int classes;
    float lambda_ws;
    float lambda_r;
};

KERNEL(1024, 1) objective(ARGUMENTS(Objective) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const float by = a.gradient ? *a.gradient : 0.f;
    float entropy = 0, right = 0, wrong = 0, correct = 0;
    for (int m = warp; m < a.images; m += warps) {
        const float* row = a.logits + (long long)m * a.outputs;
        const int label = (int)a.labels[m];
        float largest = -3e38f, best = -3e38f, sum = 0, square = 0;
        for (int r = lane; r < a.outputs; r += 32) {
            largest = max(largest, row[r]);
            if (r < a.classes && r != label) best = max(best, row[r]);
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            largest = max(largest, shuffle_xor(largest, distance));
            best = max(best, shuffle_xor(best, distance));
        }
        for (int r = lane; r < a.outputs; r += 32) {
            float e = __expf(row[r] - largest);
            sum += e;
            square += e * e;
        }
        sum = over_warp(sum);
        square = over_warp(square);
        const float own = __expf(row[label] - largest);
        const float cos = min(own * rsqrt_of(square), 1.f);  // p_t / ‖p‖, and rounding does not carry it beyond 1
        if (lane == 0) {
            a.cos[m] = cos;
            entropy += __logf(sum) + largest - row[label];
            right += cos;
            wrong += 1 - cos;
            correct += row[label] > best;
        }
        if (a.gradient)
            for (int r = lane; r < a.outputs; r += 32)
                a.dlogits[(long long)m * a.outputs + r] = by / a.images * (__expf(row[r] - largest) / sum - (r == label));
    }
    entropy = over_block(entropy, kept) / a.images;
    right = max(over_block(right, kept), 1.17549435e-38f);  // N_p, N_h: D3
    wrong = max(over_block(wrong, kept), 1.17549435e-38f);
    correct = over_block(correct, kept);

    float wasserstein = 0;
    for (int l = 0; l < a.levels; l++) {
        const Judged& level = a.level[l];
        const int n = level.capsules;
        for (int m = warp; m < a.images; m += warps) {
            const float cos = a.cos[m];
            const float selected = (1 - cos) / (2 * wrong) - cos / right, not_selected = n > 1 ? cos / (2 * right) / (n - 1) : 0.f;
            for (int i = lane; i < n; i += 32) {
                const long long at_ = (long long)m * n + i;
                const float fitness = level.a[at_], b = level.b[at_];
                if (n > 1) wasserstein += selected * b * fitness + not_selected * (1 - b) * fitness;
                if (a.gradient) {
                    float some = n > 1 ? by * a.lambda_ws : 0.f;
                    level.da[at_] = some * (selected * b + not_selected * (1 - b));
                    level.db[at_] = some * (selected - not_selected) * fitness;
                }
            }
        }
    }
    wasserstein = over_block(wasserstein, kept);
    if (threadIdx.x == 0 && !a.gradient) {
        const float terms[4] = {entropy + a.lambda_ws * wasserstein + a.lambda_r * *a.reconstruction, entropy, wasserstein,
                                *a.reconstruction};
        for (int i = 0; i < 4; i++) a.terms[i] = terms[i];
        if (a.sums) {
            for (int i = 0; i < 4; i++) a.sums[i] += terms[i];
            a.sums[4] += (double)correct / a.images;
            a.sums[5] += 1;
        }
    }
}
