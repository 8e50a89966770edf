// How a block of threads covers maps, and how a tile of input comes into shared memory: activated, with its border.
#include "primitives.cuh"

// A warp works on two units at a time: the rows 0–7 and 8–15 of a tensor core's product. A unit is a strip of eight
// positions of one row (of several images side by side, where a map is narrower than that), ROWS rows high.
struct Tile {
    int height;
    int width;
    int images;
    int rows;  // of a tile, a multiple of ROWS; a map higher than that takes several
    int per_block;  // images in a block
    int strip_log;  // log₂ of the positions of one image in a strip
    int units;
    Divisor tiles;  // a map takes
    Divisor strips;  // in a row
    Divisor groups;  // of ROWS rows in a tile
    Divisor wide;  // positions of a row with its border
    Divisor high;  // rows of a tile with its border
    Divisor positions;  // of all that, in a block
};

struct Spot {
    int image;  // within the block
    int x;
    int row;  // first row of the unit, within the tile
    bool inside;  // not a filling place
};

device_function int first_image(const Tile& t) { return divide(blockIdx.x, t.tiles) * t.per_block; }
device_function int first_row(const Tile& t) {
    return ((int)blockIdx.x - divide(blockIdx.x, t.tiles) * (int)t.tiles.value) * t.rows;
}

device_function Spot locate(const Tile& t, int unit, int place, int rows) {
    Spot s;
    s.inside = unit < t.units;
    unit = s.inside ? unit : 0;
    int rest = divide(unit, t.groups);
    s.row = (unit - rest * (int)t.groups.value) * rows;
    int side_by_side = divide(rest, t.strips);
    s.x = ((rest - side_by_side * (int)t.strips.value) << 3) + (place & ((1 << t.strip_log) - 1));
    s.image = (side_by_side << (3 - t.strip_log)) + (place >> t.strip_log);
    s.inside = s.inside && s.x < t.width;
    return s;
}

// The spot's place in a tile with its border; filling places name a neighbour, to be ignored.
device_function int place_in_tile(const Tile& t, const Spot& s) {
    return (s.image * (int)t.high.value + s.row) * (int)t.wide.value + min(s.x, t.width - 1);
}

// Sums over images and positions, one for each channel.
struct Statistics {
    const float* sum;
    const float* square;
    int capsule;  // 0: every capsule has the same
};

device_function void mean_and_rstd(const Statistics& s, int n, int channel, float count, float eps, float& mean, float& rstd) {
    mean = s.sum[n * s.capsule + channel] / count;
    rstd = rsqrt_of(max(s.square[n * s.capsule + channel] / count - mean * mean, 0.f) + eps);
}

// What a layer reads: `before` channels (as patches of stride×stride positions, where the layer has a stride), then
// those that the block's layers have grown. Chunks are eight channels; what a layer grows is filled up to whole ones.
struct Input {
    View before;
    View grown;
    int stride;
    int height;  // of the map behind `before`
    int width;
    int channels;  // of `before`
    int growth;  // channels a layer grows
    int split;  // chunks of `before`, all places of a patch counted
    int chunks;  // in all
    Divisor before_chunks;  // of one place of a patch
    Divisor across;  // = stride, or a number above all places where chunks of several capsules are one input
    Divisor grown_chunks;  // of one layer
    Divisor even;  // chunks, rounded up to pairs
    int low;  // offset of the first tap: -1 or 0
    int norm;  // 0: taken as it is. 1: batch norm by the batch's statistics and ReLU. 2: by the running ones
    Statistics before_statistics;
    Statistics grown_statistics;
    const float* gamma;  // (n, channels of the layer)
    const float* beta;
    float* running_mean;
    float* running_var;
    int layer_channels;
    int update;  // of the running statistics, by this launch
    float count;  // images × positions
    float eps;
    float momentum;
};

// Channel `real` of the layer for element e of chunk q, -1 where there is none.
device_function int real_channel(const Input& in, int q, int e) {
    if (q >= in.chunks) return -1;
    if (q < in.split) return (q - divide(q, in.before_chunks) * (int)in.before_chunks.value) * 8 + e;
    int layer = divide(q - in.split, in.grown_chunks);
    int w = (q - in.split - layer * (int)in.grown_chunks.value) * 8 + e;
    return w < in.growth ? in.channels + layer * in.growth + w : -1;
}

// scale and shift of every channel: γ(x − μ)/√(σ² + ε) + β = scale·x + shift
device_function void prepare_norm(const Input& in, int n, float* scale, float* shift) {
    for (int i = threadIdx.x; i < (int)in.even.value * 8; i += blockDim.x) {
        int q = i / 8, real = real_channel(in, q, i % 8);
        float a = 0, b = 0;
        if (real >= 0) {
            int place = n * in.layer_channels + real;
            float mean, rstd;
            if (in.norm == 1) {
                bool old = q < in.split;
                mean_and_rstd(old ? in.before_statistics : in.grown_statistics, n, old ? real : (q - in.split) * 8 + i % 8,
                              in.count, in.eps, mean, rstd);
                if (in.update && blockIdx.x == 0 && blockIdx.z == 0 && (!old || q < (int)in.before_chunks.value)) {
                    float var = max(1 / (rstd * rstd) - in.eps, 0.f) * (in.count / max(in.count - 1, 1.f));
                    in.running_mean[place] += in.momentum * (mean - in.running_mean[place]);
                    in.running_var[place] += in.momentum * (var - in.running_var[place]);
                }
            } else {
                mean = in.running_mean[place];
                rstd = rsqrt_of(in.running_var[place] + in.eps);
            }
            a = in.gamma[place] * rstd;
            b = in.beta[place] - mean * a;
        }
        scale[i] = a;
        shift[i] = b;
    }
}

// The tile's input with its border, as (position, channel) with `pitch` bytes a position; zeros outside the map.
device_function void load_tile(const Input& in, const Tile& t, int image0, int row0, int n, int pitch, char* tile,
                               const float* scale, const float* shift) {
    const int positions = t.positions.value, even = in.even.value;
#pragma unroll 4
    for (int i = threadIdx.x; i < positions * even; i += blockDim.x) {
        // The faster index is the one that memory is contiguous along.
        int q, position;
        if (in.before.chunk == 8) {
            position = divide(i, in.even);
            q = i - position * even;
        } else {
            q = divide(i, t.positions);
            position = i - q * positions;
        }
        int line = divide(position, t.wide);
        int column = position - line * (int)t.wide.value;
        int image = divide(line, t.high);
        int y = row0 + in.low + line - image * (int)t.high.value, x = in.low + column;
        int m = image0 + image;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (q < in.chunks && m < t.images) {
            const bf16* from = nullptr;
            if (q >= in.split) {
                if (y >= 0 && y < t.height && x >= 0 && x < t.width)
                    from = at(in.grown, q - in.split, m, n) + (y * t.width + x) * in.grown.position;
            } else {
                int place = divide(q, in.before_chunks);
                int chunk = q - place * (int)in.before_chunks.value;
                int down = divide(place, in.across), right = place - down * (int)in.across.value;
                if (in.stride == 1) {  // `place` is a capsule where several are one input, else 0
                    down = 0;
                    right = 0;
                } else {
                    place = 0;
                }
                y = y * in.stride + down;
                x = x * in.stride + right;
                if (y >= 0 && y < in.height && x >= 0 && x < in.width)
                    from = at(in.before, chunk, m, n + place) + (y * in.width + x) * in.before.position;
            }
            if (from) {
                v = __ldg((const uint4*)from);
                if (in.norm) {
                    float f[8];
                    unpack(v, f);
#pragma unroll
                    for (int e = 0; e < 8; e++) f[e] = max(f[e] * scale[q * 8 + e] + shift[q * 8 + e], 0.f);
                    v = pack(f);
                }
            }
        }
        *(uint4*)(tile + position * pitch + q * 16) = v;
    }
}
