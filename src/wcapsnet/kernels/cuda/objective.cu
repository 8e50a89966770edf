// Eq. 15 and its gradient: cross entropy, the Wasserstein loss of every level (Eq. 4, 8–12), plain or centred (D38),
// reconstruction. One warp per image. N_p, N_h and the means are sums over all images, so the terms need several launches.
#include "primitives.cuh"

#define LEVELS 16

struct Judged {
    const float* a;  // (m, capsules)
    const float* b;
    float* da;
    float* db;
    float* mean;  // (capsules,): of a over the images, if the loss is centred; initialised with zeros
    float* factor;  // (capsules,): the mean over the images of the factor of a in the loss; likewise
    int capsules;
};

struct Objective {
    Judged level[LEVELS];
    int levels;
    const float* logits;  // (m, outputs)
    const long long* labels;
    const float* reconstruction;  // the mean squared error
    float* cos;  // (m,)
    float* added;  // cross entropy, N_p, N_h, correct predictions, Wasserstein: initialised with zeros
    float* terms;  // total, cross entropy, Wasserstein, reconstruction
    double* sums;  // the terms, accuracy, 1: added up; or null
    const float* gradient;  // of the total; null: compute only the terms
    float* dlogits;
    int images;
    int outputs;
    int classes;
    float lambda_ws;
    float lambda_r;
    int centred;
};

device_function void read_image(const Objective& a, int m, float& largest, float& sum, float& square) {
    const float* row = a.logits + (long long)m * a.outputs;
    largest = -3e38f;
    sum = square = 0;
    for (int r = threadIdx.x % 32; r < a.outputs; r += 32) largest = max(largest, row[r]);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) largest = max(largest, shuffle_xor(largest, distance));
    for (int r = threadIdx.x % 32; r < a.outputs; r += 32) {
        float e = __expf(row[r] - largest);
        sum += e;
        square += e * e;
    }
    sum = over_warp(sum);
    square = over_warp(square);
}

KERNEL(256, 4) objective_images(ARGUMENTS(Objective) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    float entropy = 0, right = 0, wrong = 0, correct = 0;
    if (m < a.images) {
        const float* row = a.logits + (long long)m * a.outputs;
        const int label = (int)a.labels[m];
        float largest, sum, square, best = -3e38f;
        read_image(a, m, largest, sum, square);
        for (int r = lane; r < a.classes; r += 32)
            if (r != label) best = max(best, row[r]);
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) best = max(best, shuffle_xor(best, distance));
        if (lane == 0) {
            // cos θ = p_t / ‖p‖, clamped to 1 against rounding
            const float cos = min(__expf(row[label] - largest) * rsqrt_of(square), 1.f);
            a.cos[m] = cos;
            entropy = __logf(sum) + largest - row[label];
            right = cos;
            wrong = 1 - cos;
            correct = row[label] > best;
        }
    }
    entropy = over_block(entropy, kept);
    right = over_block(right, kept);
    wrong = over_block(wrong, kept);
    correct = over_block(correct, kept);
    if (threadIdx.x == 0) {
        atomicAdd(a.added, entropy / a.images);
        atomicAdd(a.added + 1, right);
        atomicAdd(a.added + 2, wrong);
        atomicAdd(a.added + 3, correct / a.images);
    }
}

// The weights of F_s and F_ns of an image in the loss (Eq. 12); the denominators are guarded (D3).
device_function void shares(const Objective& a, int m, int n, float& selected, float& not_selected) {
    const float cos = a.cos[m], right = max(a.added[1], 1.17549435e-38f), wrong = max(a.added[2], 1.17549435e-38f);
    selected = n > 1 ? (1 - cos) / (2 * wrong) - cos / right : 0.f;
    not_selected = n > 1 ? cos / (2 * right) / (n - 1) : 0.f;
}

KERNEL(256, 4) objective_means(ARGUMENTS(Objective) a) {
    const Judged& level = a.level[blockIdx.y];
    const int m = blockIdx.x * 8 + threadIdx.x / 32, n = level.capsules;
    if (m >= a.images) return;
    for (int i = threadIdx.x % 32; i < n; i += 32) atomicAdd(level.mean + i, level.a[(long long)m * n + i] / a.images);
}

KERNEL(256, 4) objective_levels(ARGUMENTS(Objective) a) {
    SHARED_MEMORY(memory);
    const Judged& level = a.level[blockIdx.y];
    const int m = blockIdx.x * 8 + threadIdx.x / 32, n = level.capsules;
    float loss = 0;
    if (m < a.images) {
        float selected, not_selected;
        shares(a, m, n, selected, not_selected);
        for (int i = threadIdx.x % 32; i < n; i += 32) {
            const float fitness = level.a[(long long)m * n + i], b = level.b[(long long)m * n + i];
            const float factor = selected * b + not_selected * (1 - b);
            loss += factor * (a.centred ? fitness - level.mean[i] : fitness);
            if (a.centred) atomicAdd(level.factor + i, factor / a.images);
        }
    }
    loss = over_block(loss, (float*)memory);
    if (threadIdx.x == 0) atomicAdd(a.added + 4, loss);
}

KERNEL(32, 1) objective_terms(ARGUMENTS(Objective) a) {
    if (threadIdx.x) return;
    const float entropy = a.added[0], wasserstein = a.added[4] / a.levels, reconstruction = *a.reconstruction;
    const float terms[4] = {entropy + a.lambda_ws * wasserstein + a.lambda_r * reconstruction, entropy, wasserstein, reconstruction};
    for (int i = 0; i < 4; i++) {
        a.terms[i] = terms[i];
        if (a.sums) a.sums[i] += terms[i];
    }
    if (!a.sums) return;
    a.sums[4] += a.added[3];
    a.sums[5] += 1;
}

KERNEL(256, 4) objective_backward(ARGUMENTS(Objective) a) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, l = blockIdx.y;
    if (m >= a.images) return;
    if (l == a.levels) {
        const float* row = a.logits + (long long)m * a.outputs;
        float largest, sum, square;
        read_image(a, m, largest, sum, square);
        for (int r = lane; r < a.outputs; r += 32)
            a.dlogits[(long long)m * a.outputs + r] =
                *a.gradient / a.images * (__expf(row[r] - largest) / sum - (r == (int)a.labels[m]));
        return;
    }
    const Judged& level = a.level[l];
    const int n = level.capsules;
    float selected, not_selected;
    shares(a, m, n, selected, not_selected);
    for (int i = lane; i < n; i += 32) {
        const long long place = (long long)m * n + i;
        const float fitness = level.a[place] - (a.centred ? level.mean[i] : 0.f), b = level.b[place];
        const float by = *a.gradient * a.lambda_ws / a.levels;
        level.da[place] = by * (selected * b + not_selected * (1 - b) - (a.centred ? level.factor[i] : 0.f));
        level.db[place] = by * (selected - not_selected) * fitness;
    }
}
