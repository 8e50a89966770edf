// Eq. 15 and its gradient: cross entropy, the Wasserstein loss of every level (Eq. 4, 8–12), plain or centred (D38),
// reconstruction; smoothed labels, information (D40). One warp per image. N_p, N_h and the means are sums over all images,
// so the terms need several launches. If images are mixed, every term is share · L(labels) + (1 − share) · L(labels of the
// previous image).
#include "primitives.cuh"

#define LEVELS 16

struct Judged {
    const float* a;  // (m, capsules)
    const float* b;
    float* da;
    float* db;
    float* mean;  // (capsules,): of a over the images, if the loss is centred; initialised with zeros
    float* factor;  // (capsules,): the mean over the images of the factor of a in the loss; likewise
    float* usage;  // (blocks,): the mean over the images of a block's weight, if information is a term; likewise
    int capsules;
    int positions;  // capsules of a block
};

struct Objective {
    Judged level[LEVELS];
    int levels;
    const float* logits;  // (m, outputs)
    const long long* labels;
    const float* reconstruction;  // the mean squared error
    const float* share;  // share of the own label; null: images are not mixed
    float* cos;  // (2, m): for both labels
    float* added;  // cross entropy, N_p, N_h, correct predictions, Wasserstein, N_p, N_h of the other labels, smoothed
                   // labels, mean entropy of the weights: initialised with zeros
    float* terms;  // total, cross entropy, Wasserstein, reconstruction, smoothed labels, information
    double* sums;  // the total, the terms in the order of the objective, accuracy, 1: added up; or null
    int place[5];  // position of each term in `sums`; 0: absent
    int accuracy;  // its position in `sums`
    const float* gradient;  // of the total; null: compute only the terms
    float* dlogits;
    int images;
    int outputs;
    int classes;
    float lambda_ws;
    float lambda_r;
    float lambda_s;
    float lambda_i;
    int centred;
    int information;
};

device_function int label_of(const Objective& a, int m, int other) {
    return (int)a.labels[other ? (m ? m : a.images) - 1 : m];
}

// The weight of the loss for the own labels, or for the other labels.
device_function float part_of(const Objective& a, int other) {
    return a.share ? (other ? 1 - *a.share : *a.share) : 1.f;
}

// The weight of a block; every lane has it.
device_function float block_weight(const Judged& level, int m, int block) {
    const float* b = level.b + (long long)m * level.capsules + block * level.positions;
    float sum = 0;
    for (int i = threadIdx.x % 32; i < level.positions; i += 32) sum += b[i];
    return over_warp(sum);
}

device_function float log_of(float x) { return __logf(max(x, 1.17549435e-38f)); }

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
    float entropy = 0, smoothed = 0, correct = 0, right[2] = {}, wrong[2] = {};
    if (m < a.images) {
        const float* row = a.logits + (long long)m * a.outputs;
        float largest, sum, square, mean = 0;
        read_image(a, m, largest, sum, square);
        for (int r = lane; r < a.outputs; r += 32) mean += row[r] / a.outputs;
        mean = over_warp(mean);
        const float log_sum = __logf(sum) + largest;
#pragma unroll
        for (int other = 0; other < 2; other++) {
            if (other && !a.share) break;
            const int label = label_of(a, m, other);
            float best = -3e38f;
            for (int r = lane; r < a.classes; r += 32)
                if (r != label) best = max(best, row[r]);
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) best = max(best, shuffle_xor(best, distance));
            if (lane == 0) {
                // cos θ = p_t / ‖p‖, clamped to 1 against rounding
                const float cos = min(__expf(row[label] - largest) * rsqrt_of(square), 1.f), part = part_of(a, other);
                a.cos[other * a.images + m] = cos;
                entropy += part * (log_sum - row[label]);
                right[other] = cos;
                wrong[other] = 1 - cos;
                correct += part * (row[label] > best);
            }
        }
        if (lane == 0) smoothed = log_sum - mean;
    }
    const float found[7] = {entropy / a.images, right[0], wrong[0], correct / a.images, right[1], wrong[1], smoothed / a.images};
    const int at[7] = {0, 1, 2, 3, 5, 6, 7};
#pragma unroll
    for (int i = 0; i < 7; i++) {
        const float total = over_block(found[i], kept);
        if (threadIdx.x == 0) atomicAdd(a.added + at[i], total);
    }
}

// The weights of F_s and F_ns of an image in the loss (Eq. 12); the denominators are guarded (D3).
device_function void shares(const Objective& a, int m, int n, float& selected, float& not_selected) {
    selected = not_selected = 0;
    for (int other = 0; other < (a.share ? 2 : 1) && n > 1; other++) {
        const float* sums = a.added + (other ? 5 : 1);
        const float cos = a.cos[other * a.images + m], part = part_of(a, other);
        const float right = max(sums[0], 1.17549435e-38f), wrong = max(sums[1], 1.17549435e-38f);
        selected += part * ((1 - cos) / (2 * wrong) - cos / right);
        not_selected += part * (cos / (2 * right) / (n - 1));
    }
}

KERNEL(256, 4) objective_means(ARGUMENTS(Objective) a) {
    SHARED_MEMORY(memory);
    const Judged& level = a.level[blockIdx.y];
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, n = level.capsules;
    float entropy = 0;
    if (m < a.images) {
        if (a.centred)
            for (int i = lane; i < n; i += 32) atomicAdd(level.mean + i, level.a[(long long)m * n + i] / a.images);
        if (a.information)
            for (int block = 0; block < n / level.positions; block++) {
                const float b = block_weight(level, m, block);
                if (lane) continue;
                atomicAdd(level.usage + block, b / a.images);
                entropy -= b * log_of(b) / a.images;
            }
    }
    if (!a.information) return;
    entropy = over_block(entropy, (float*)memory);
    if (threadIdx.x == 0) atomicAdd(a.added + 8, entropy);
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
    float entropy = 0;  // of the mean weights
    if (a.information)
        for (int l = 0; l < a.levels; l++)
            for (int block = 0; block < a.level[l].capsules / a.level[l].positions; block++) {
                const float b = a.level[l].usage[block];
                entropy -= b * log_of(b);
            }
    const float term[5] = {a.added[0], a.added[4] / a.levels, *a.reconstruction, a.added[7], (a.added[8] - entropy) / a.levels};
    const float total = term[0] + a.lambda_ws * term[1] + a.lambda_r * term[2] + a.lambda_s * term[3] + a.lambda_i * term[4];
    a.terms[0] = total;
    for (int i = 0; i < 5; i++) a.terms[i + 1] = term[i];
    if (!a.sums) return;
    a.sums[0] += total;
    for (int i = 0; i < 5; i++)
        if (a.place[i]) a.sums[a.place[i]] += term[i];
    a.sums[a.accuracy] += a.added[3];
    a.sums[a.accuracy + 1] += 1;
}

KERNEL(256, 4) objective_backward(ARGUMENTS(Objective) a) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, l = blockIdx.y;
    if (m >= a.images) return;
    if (l == a.levels) {
        const float* row = a.logits + (long long)m * a.outputs;
        float largest, sum, square;
        read_image(a, m, largest, sum, square);
        for (int r = lane; r < a.outputs; r += 32) {
            float target = a.lambda_s / a.outputs;
            for (int other = 0; other < (a.share ? 2 : 1); other++)
                if (r == label_of(a, m, other)) target += part_of(a, other);
            a.dlogits[(long long)m * a.outputs + r] =
                *a.gradient / a.images * ((1 + a.lambda_s) * __expf(row[r] - largest) / sum - target);
        }
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
    if (!a.information) return;
    __syncwarp();
    for (int block = 0; block < n / level.positions; block++) {
        const float by = *a.gradient * a.lambda_i / a.levels / a.images;
        const float d = by * (log_of(level.usage[block]) - log_of(block_weight(level, m, block)));
        for (int i = lane; i < level.positions; i += 32) level.db[(long long)m * n + block * level.positions + i] += d;
    }
}
