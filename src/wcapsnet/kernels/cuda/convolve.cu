// y_n = relu(norm(x_n)) ∗ w_n for all capsules n: a convolution of TAPS×TAPS taps to 8·out_chunks channels.
// COLUMNS chunks of output are computed at once, ROWS rows by a warp: an input row, once in registers, serves the
// three rows of output it touches.
#include "tiles.cuh"

struct Convolve {
    Input in;
    Tile tile;
    View out;
    const uint2* weights;  // [n][pair of chunks][tap][chunk of output][lane]
    int out_chunks;
    int out_stride;  // output chunks are patches of a map this much larger
    int out_height;
    int out_width;
    Divisor out_place_chunks;  // chunks of one place of a patch
    Divisor out_across;
    float* out_sum;  // null: no statistics are wanted
    float* out_square;
    int out_capsule;
};

KERNEL(512) convolve(ARGUMENTS(Convolve) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int even = a.in.even.value, steps = even / 2, pitch = (even + 1) * 16, wide = a.tile.wide.value;
    const int image0 = first_image(a.tile), row0 = first_row(a.tile);
    float* scale = (float*)memory;
    float* shift = scale + even * 8;
    float* sums = shift + even * 8;  // [2][8·COLUMNS]
    char* tile = (char*)(sums + 16 * COLUMNS);

    if (a.in.norm) prepare_norm(a.in, n, scale, shift);
    for (int i = threadIdx.x; i < 16 * COLUMNS; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    load_tile(a.in, a.tile, image0, row0, n, pitch, tile, scale, shift);
    __syncthreads();

    // Which row of a product a lane names to the tensor core, and which it gets back.
    Spot named = locate(a.tile, warp * 2 + (lane >> 3 & 1), lane & 7, ROWS);
    const char* origin = tile + place_in_tile(a.tile, named) * pitch + (lane >> 4) * 16;
    const uint2* weights = a.weights + (long long)n * steps * TAPS * TAPS * a.out_chunks * 32 + lane;

    const int column0 = blockIdx.z * COLUMNS;
    float sum[ROWS][COLUMNS][4] = {};
    for (int step = 0; step < steps; step++) {
        uint2 w[TAPS * TAPS][COLUMNS];
#pragma unroll
        for (int tap = 0; tap < TAPS * TAPS; tap++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                w[tap][c] = column0 + c < a.out_chunks
                                ? __ldg(weights + ((step * TAPS * TAPS + tap) * a.out_chunks + column0 + c) * 32)
                                : make_uint2(0, 0);
#pragma unroll
        for (int line = 0; line < ROWS + TAPS - 1; line++)
#pragma unroll
            for (int dx = 0; dx < TAPS; dx++) {
                unsigned x[4];
                load_matrices<false>(x, origin + (line * wide + dx) * pitch + step * 32);
#pragma unroll
                for (int dy = 0; dy < TAPS; dy++) {
                    const int row = line - dy;
                    if (row >= 0 && row < ROWS)
#pragma unroll
                        for (int c = 0; c < COLUMNS; c++)
                            multiply_add(sum[row][c], x, w[dy * TAPS + dx][c].x, w[dy * TAPS + dx][c].y);
                }
            }
    }

    float total[COLUMNS][4] = {};  // Σy and Σy² of the lane's two channels
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Spot got = locate(a.tile, warp * 2 + half, lane / 4, ROWS);
        if (!got.inside || image0 + got.image >= a.tile.images) continue;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            int y = row0 + got.row + row, x = got.x;
            if (y >= a.tile.height) continue;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                int chunk = column0 + c, yy = y, xx = x;
                if (chunk >= a.out_chunks) continue;
                if (a.out_stride > 1) {
                    int place = divide(chunk, a.out_place_chunks), down = divide(place, a.out_across);
                    chunk -= place * (int)a.out_place_chunks.value;
                    yy = y * a.out_stride + down;
                    xx = x * a.out_stride + place - down * (int)a.out_across.value;
                    if (yy >= a.out_height || xx >= a.out_width) continue;
                }
                unsigned two = pack(sum[row][c][half * 2], sum[row][c][half * 2 + 1]);
                *(unsigned*)(at(a.out, chunk, image0 + got.image, n) + (yy * a.out_width + xx) * a.out.position +
                             lane % 4 * 2) = two;
                float low = low_half(two), high = high_half(two);  // as the next layer will see them
                total[c][0] += low;
                total[c][1] += high;
                total[c][2] += low * low;
                total[c][3] += high * high;
            }
        }
    }
    if (!a.out_sum) return;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = total[c][i];
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2) x += shuffle_xor(x, distance);
            if (lane < 4) atomicAdd(sums + (i / 2 * COLUMNS + c) * 8 + lane * 2 + i % 2, x);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * COLUMNS; i += blockDim.x) {
        int square = i / (8 * COLUMNS), channel = column0 * 8 + i % (8 * COLUMNS);
        if (channel < a.out_chunks * 8)
            atomicAdd((square ? a.out_square : a.out_sum) + n * a.out_capsule + channel, sums[i]);
    }
}
