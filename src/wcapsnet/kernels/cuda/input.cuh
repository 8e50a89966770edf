// The input of a layer: BEFORE chunks of channels from before the block (as patches of STRIDE×STRIDE positions, where the
// layer has a stride), then those that the block's layers have grown, GROWN chunks each. A chunk is eight channels; both
// parts are filled up with zeros. LOW is the offset of the first tap. EVEN is the number of chunks, rounded up to pairs.
// NORM: batch norm and ReLU, done to what has come from shared memory into registers; outside of the map is zero, which
// they would change, so that is masked there. DIVIDED: the stride divides the map.
#include "tiles.cuh"

constexpr int SPLIT = BEFORE * STRIDE * STRIDE;  // chunks of `before`, counting all positions of a patch
constexpr int PITCH = (EVEN + 1) * 16;  // bytes of a position in shared memory: odd, to avoid bank conflicts

struct Input {
    View before;
    View grown;
    int height;  // of the map behind `before`
    int width;
    int images;
    int channels;  // of `before`
    int growth;  // channels a layer grows
    int chunks;  // in all
    int running;  // 1: norm by the running statistics, else by the batch's
    int update;  // 1: the running statistics are updated by this launch
    Statistics before_statistics;
    Statistics grown_statistics;
    const float* gamma;  // (n, channels of the layer)
    const float* beta;
    float* running_mean;
    float* running_var;
    int layer_channels;
    float count;  // images × positions
    float eps;
    float momentum;
};

// The layer's channel for element e of chunk q, -1 if there is none.
device_function int real_channel(const Input& in, int q, int e) {
    if (q >= in.chunks) return -1;
    if (q < SPLIT) return q % BEFORE * 8 + e < in.channels ? q % BEFORE * 8 + e : -1;
    int w = (q - SPLIT) % GROWN * 8 + e;
    return w < in.growth ? in.channels + (q - SPLIT) / GROWN * in.growth + w : -1;
}

// Norm and ReLU of pairs of channels.
device_function void prepare_norm(const Input& in, int n, Affine* affine) {
    for (int i = threadIdx.x; i < EVEN * 4; i += blockDim.x) {
        float gamma_r[2] = {}, mean[2] = {}, beta[2] = {};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int q = i / 4, e = i % 4 * 2 + k, real = real_channel(in, q, e), place = n * in.layer_channels + real;
            if (real < 0) continue;
            float rstd;
            if (in.running) {
                mean[k] = in.running_mean[place];
                rstd = rsqrt_of(in.running_var[place] + in.eps);
            } else {
                const bool old = q < SPLIT;
                mean_and_rstd(old ? in.before_statistics : in.grown_statistics, n, old ? real : (q - SPLIT) * 8 + e, in.count, in.eps,
                              mean[k], rstd);
                if (in.update && blockIdx.x == 0 && blockIdx.z == 0 && (!old || q < BEFORE))
                    remember(in.running_mean + place, in.running_var + place, mean[k], rstd, in.count, in.eps, in.momentum);
            }
            gamma_r[k] = in.gamma[place] * rstd;
            beta[k] = in.beta[place];
        }
        affine[i] = affine_of(gamma_r, mean, beta);
    }
}

// Whether a position of the tile is inside the map that chunk q comes from.
device_function bool on_map(const Input& in, int y, int x, int q) {
    int height = HEIGHT, width = WIDTH;
    if (STRIDE > 1 && !DIVIDED && q < SPLIT) {
        height = (in.height - q / BEFORE / STRIDE + STRIDE - 1) / STRIDE;
        width = (in.width - q / BEFORE % STRIDE + STRIDE - 1) / STRIDE;
    }
    return y >= 0 && y < height && x >= 0 && x < width;
}

// Zeros where `load_chunks` will write nothing: outside the map, and in the chunk that only fills a pair.
device_function void clear_tile(const Input& in, int image0, int row0, char* tile) {
    if (!SHIFT) {
        clear(tile, POSITIONS * PITCH);
        return;
    }
    const int lane = threadIdx.x % 32;
    for (int line = threadIdx.x / 32; line < PER_BLOCK * HIGH; line += blockDim.x / 32) {
        const int y = row0 + LOW + line % HIGH;
        const bool outside = y < 0 || y >= HEIGHT || image0 + line / HIGH >= in.images;
        char* row = tile + line * WIDE * PITCH;
        if (outside || WIDE > WIDTH)
            for (int i = (outside ? 0 : WIDTH * PITCH) + lane * 16; i < WIDE * PITCH; i += 512) *(uint4*)(row + i) = make_uint4(0, 0, 0, 0);
        if (in.chunks < EVEN)
            for (int x = lane; x < WIDE; x += 32) *(uint4*)(row + x * PITCH + (EVEN - 1) * 16) = make_uint4(0, 0, 0, 0);
    }
}

// Chunks `from` … `to` − 1 of the tile's input, as (position, channel); positions outside the map are left to `clear_tile`.
device_function void load_chunks(const Input& in, int from, int to, int image0, int row0, int n, char* tile) {
    const int low = row0 + LOW;  // the map's row that is the tile's first
    const int images = min(PER_BLOCK, in.images - image0);
    for (int job = threadIdx.x / 32; job < (to - from) * PARTS; job += blockDim.x / 32) {
        const int part = job % PARTS, q = from + job / PARTS;
        const bf16* source;
        long long from_image;
        int from_row, from_column, height = HEIGHT, columns = WIDTH;
        if (q >= SPLIT) {
            source = at(in.grown, q - SPLIT, image0, n);
            from_image = in.grown.image;
            from_row = WIDTH * 8;
            from_column = 8;
        } else {
            const int place = q / BEFORE, down = place / STRIDE, right = place % STRIDE, across = STRIDE == 1 ? WIDTH : in.width;
            from_column = (int)in.before.position;
            from_image = in.before.image;
            source = at(in.before, q % BEFORE, image0, n) + (down * across + right) * from_column;
            from_column *= STRIDE;
            from_row = from_column * across;
            if (STRIDE > 1) {
                height = (in.height - down + STRIDE - 1) / STRIDE;
                columns = (in.width - right + STRIDE - 1) / STRIDE;
            }
        }
        char* target = tile - (low * WIDE + (SHIFT ? 0 : LOW)) * PITCH + q * 16;
        copy_part<HIGH * WIDE * PITCH, WIDE * PITCH, PITCH>(part, images, max(low, 0), min(low + HIGH, height), columns, source,
                                                            from_image, from_row, from_column, target);
    }
}
