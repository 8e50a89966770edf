// What a layer reads: BEFORE chunks of channels from before the block (as patches of STRIDE×STRIDE positions, where the
// layer has a stride), then those that the block's layers have grown. Chunks are eight channels; what a layer grows is
// filled up to GROWN whole ones. LOW is the offset of the first tap. EVEN is the number of chunks, rounded up to pairs. NORM: batch norm and ReLU on the way.
#include "tiles.cuh"

constexpr int SPLIT = BEFORE * STRIDE * STRIDE;  // chunks of `before`, all places of a patch counted
constexpr int PITCH = (EVEN + 1) * 16;  // bytes of a position in shared memory: odd, so that no two rows meet in a bank

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

// The layer's channel for element e of chunk q, -1 where there is none.
device_function int real_channel(const Input& in, int q, int e) {
    if (q >= in.chunks) return -1;
    if (q < SPLIT) return q % BEFORE * 8 + e;
    int w = (q - SPLIT) % GROWN * 8 + e;
    return w < in.growth ? in.channels + (q - SPLIT) / GROWN * in.growth + w : -1;
}

// scale and shift of every channel: γ(x − μ)/√(σ² + ε) + β = scale·x + shift
device_function void prepare_norm(const Input& in, int n, float* scale, float* shift) {
    for (int i = threadIdx.x; i < EVEN * 8; i += blockDim.x) {
        int q = i / 8, real = real_channel(in, q, i % 8);
        float a = 0, b = 0;
        if (real >= 0) {
            int place = n * in.layer_channels + real;
            float mean, rstd;
            if (in.running) {
                mean = in.running_mean[place];
                rstd = rsqrt_of(in.running_var[place] + in.eps);
            } else {
                bool old = q < SPLIT;
                mean_and_rstd(old ? in.before_statistics : in.grown_statistics, n, old ? real : (q - SPLIT) * 8 + i % 8, in.count,
                              in.eps, mean, rstd);
                if (in.update && blockIdx.x == 0 && blockIdx.z == 0 && (!old || q < BEFORE))
                    remember(in.running_mean + place, in.running_var + place, mean, rstd, in.count, in.eps, in.momentum);
            }
            a = in.gamma[place] * rstd;
            b = in.beta[place] - mean * a;
        }
        scale[i] = a;
        shift[i] = b;
    }
}

// Zeros where `load_tile` will write nothing: outside the map, and in the chunk that only fills a pair.
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

// The tile's input as (position, channel), activated; what lies outside the map is left to `clear_tile`.
device_function void load_tile(const Input& in, int image0, int row0, int n, char* tile, const float* scale, const float* shift) {
    const int low = row0 + LOW;  // the map's row that is the tile's first
    const int images = min(PER_BLOCK, in.images - image0);
    for (int job = threadIdx.x / 32; job < in.chunks * PARTS; job += blockDim.x / 32) {
        const int part = job % PARTS, q = job / PARTS;
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
#if NORM
        float a[8], b[8];
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            *(float4*)(a + e) = *(const float4*)(scale + q * 8 + e);
            *(float4*)(b + e) = *(const float4*)(shift + q * 8 + e);
        }
        load_part<HIGH * WIDE * PITCH, WIDE * PITCH, PITCH>(
            part, images, max(low, 0), min(low + HIGH, height), columns, source, from_image, from_row, from_column, target,
            [&](uint4& v, int, int, int) {
                float f[8];
                unpack(v, f);
#pragma unroll
                for (int e = 0; e < 8; e++) f[e] = f[e] * a[e] + b[e];
                v = make_uint4(pack_positive(f[0], f[1]), pack_positive(f[2], f[3]), pack_positive(f[4], f[5]),
                               pack_positive(f[6], f[7]));
            });
#else
        copy_part<HIGH * WIDE * PITCH, WIDE * PITCH, PITCH>(part, images, max(low, 0), min(low + HIGH, height), columns, source,
                                                            from_image, from_row, from_column, target);
#endif
    }
    copies_done();
}
