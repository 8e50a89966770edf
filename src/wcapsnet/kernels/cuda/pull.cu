// The gradient of eight channels of a Dense Block, collected from all layers that read them.
//
// All of them normalise a channel by the same statistics, x̂ = (x − μ)r, and differ in γ and β only. With
// du_l = the gradient behind layer l's ReLU and G = Σ_l γ_l du_l, the gradient of the channel is
//     r (G − mean(G) − x̂ mean(G x̂)),      Σ G = Σ_l γ_l dβ_l,   Σ G x̂ = Σ_l γ_l dγ_l.
// The means need all images, so this kernel leaves G, dβ and dγ behind, and the next kernel that reads G finishes it.
#undef SHIFT
#define SHIFT 0
#define A_LANE 4
#include "readers.cuh"
#include "tiles.cuh"

struct Pull {
    Means of;  // the channels: their statistics and readers
    Reader trans;  // CapsTrans, which reads them too (gradient null: not here)
    View x;  // CHUNKS chunks of these are pulled; of patches, where the readers have a stride
    View g;
    int height;
    int width;
    int chunks;  // of one position of a patch
    int images;
    int first_chunk;  // in the readers' numbering
    View made;  // strides of the readers' gradients
    View trans_made;
    int trans_chunks;
    int fresh;  // 1: the first reader's gradient is still a G, to be finished by
    Means finish;
    View fresh_x;
    View finished;  // and stored here
    int at_once;  // readers whose gradients are in shared memory together
};

KERNEL(THREADS, BLOCKS) pull(ARGUMENTS(Pull) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int repeats = STRIDE == 1 ? 1 : a.of.repeats, readers = a.of.readers * repeats, all = readers + 1;
    const int image0 = blockIdx.x / TILES * PER_BLOCK, row0 = blockIdx.x % TILES * TILE_ROWS;
    const int groups = (a.chunks + CHUNKS - 1) / CHUNKS, place_in_patch = blockIdx.z / groups;
    const int chunk0 = blockIdx.z % groups * CHUNKS, read_chunk = a.first_chunk + place_in_patch * a.chunks + chunk0;
    const int down = place_in_patch / STRIDE, right = place_in_patch % STRIDE, across = STRIDE == 1 ? WIDTH : a.width;
    constexpr int low = TAPS == 3 ? -1 : 0, taps = TAPS * TAPS, plane = POSITIONS * 16, own = 8 * CHUNKS;
    char* tiles = memory;
    char* values = tiles + a.at_once * GROWN * plane;  // the x of the gradient to be finished
    Affine* affine = (Affine*)(values + a.fresh * GROWN * plane);  // [reader][pair of channels], the last is CapsTrans
    unsigned* gamma = (unsigned*)(affine + all * own / 2);  // [reader][channel], as two bf16 that add up to it
    float* stats = (float*)(gamma + all * own);  // [mean, rstd][8·CHUNKS]
    float* fresh = stats + 2 * own;  // dy = f0·G + f1·x + f2: [f][8·GROWN]
    const int fresh_size = a.fresh ? GROWN * 8 : 0;
    float* sums = fresh + 3 * fresh_size;  // [warp][reader][dβ, dγ][8·CHUNKS]

    // Unmodified data is loaded while norms are prepared and CapsTrans is processed.
    const int y0 = max(row0 + low, 0), y1 = min(row0 + low + HIGH, HEIGHT), images = min(PER_BLOCK, a.images - image0);
    const int origin_of_tile = ((row0 + low) * WIDE + low) * 16;
    auto stage = [&](int l0, int now) {
#pragma unroll 1
        for (int job = warp; job < now * GROWN * PARTS; job += blockDim.x / 32) {
            const int part = job % PARTS, which = job / PARTS, l = l0 + which / GROWN, chunk = which % GROWN;
            copy_part<HIGH * WIDE * 16, WIDE * 16, 16>(
                part, images, y0, y1, WIDTH,
                a.of.reader[l / repeats].gradient + image0 * a.made.image + (n + l % repeats) * a.made.capsule + chunk * a.made.chunk,
                a.made.image, WIDTH * 8, 8, tiles + which * plane - origin_of_tile);
        }
    };
    clear(tiles, a.at_once * GROWN * plane);
    __syncthreads();
    stage(0, min(a.at_once, readers));
    if (a.fresh)
        for (int job = warp; job < GROWN * PARTS; job += blockDim.x / 32)
            copy_part<HIGH * WIDE * 16, WIDE * 16, 16>(job % PARTS, images, y0, y1, WIDTH, at(a.fresh_x, job / PARTS, image0, n), a.made.image,
                                                       WIDTH * 8, 8, values + job / PARTS * plane - origin_of_tile);

    for (int i = threadIdx.x; i < all * own / 2; i += blockDim.x) {
        const int l = i / (own / 2);
        const bool is_trans = l == readers;
        const Reader& reader = is_trans ? a.trans : a.of.reader[l / repeats];
        float gamma_r[2] = {}, mean[2] = {}, beta[2] = {};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int e = i % (own / 2) * 2 + k, channel = chunk0 * 8 + e;
            float rstd = 0, c = 0;
            if (channel < a.of.channels) mean_and_rstd(a.of.statistics, n, channel, a.of.count, a.of.eps, mean[k], rstd);
            if (channel < a.of.channels && reader.gradient) {
                const int place = (is_trans ? n : n + l % repeats) * reader.channels + a.of.channel + channel;
                c = reader.gamma[place];
                beta[k] = reader.beta[place];
            }
            gamma_r[k] = c * rstd;
            const unsigned high = pack(c, 0.f);
            gamma[l * own + e] = high | pack(0.f, c - low_half(high));
            if (l == 0) {
                stats[e] = mean[k];
                stats[own + e] = rstd;
            }
        }
        affine[i] = affine_of(gamma_r, mean, beta);
    }
    for (int i = threadIdx.x; i < fresh_size; i += blockDim.x) {
        float mean = 0, rstd = 0, g = 0, gx = 0;
        if (i < a.finish.channels) means(a.finish, n, i, mean, rstd, g, gx);
        fresh[i] = rstd;
        fresh[fresh_size + i] = -rstd * rstd * gx;
        fresh[2 * fresh_size + i] = rstd * (mean * rstd * gx - g);
    }

    // The lane's positions: two positions in each of ROWS rows, two channels of each chunk.
    const int e = lane % 4 * 2;
    const bool busy = warp * 2 < UNITS;  // further warps only help with loading
    const Spot got[2] = {locate(warp * 2, lane / 4), locate(warp * 2 + 1, lane / 4)};
    unsigned x[CHUNKS][ROWS][2];
    float sum[CHUNKS][ROWS][4] = {};  // G
    constexpr bool full = STRIDE == 1 && PER_BLOCK == 1 && WIDTH % 8 == 0 && TILES * TILE_ROWS == HEIGHT && UNITS % 2 == 0;
    unsigned inside = 0;  // one bit per row and half, if not all are inside
    int place[2];  // of the half's first row in the map behind x
#pragma unroll
    for (int half = 0; half < 2; half++) {
        place[half] = ((row0 + got[half].row) * STRIDE + down) * across + got[half].x * STRIDE + right;
        const bf16* from = at(a.x, chunk0, image0 + got[half].image, n) + place[half] * (int)a.x.position + e;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            bool here = got[half].inside && image0 + got[half].image < a.images &&
                        (STRIDE == 1 ? row0 + got[half].row + row < HEIGHT
                                     : (row0 + got[half].row + row) * STRIDE + down < a.height && got[half].x * STRIDE + right < a.width);
            inside |= (unsigned)here << (row * 2 + half);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                x[c][row][half] = here && chunk0 + c < a.chunks
                                      ? *(const unsigned*)(from + c * a.x.chunk + row * STRIDE * across * (int)a.x.position)
                                      : 0;
        }
    }
    __syncthreads();

    // Pairs of bf16 at the lane's positions, of a map or a patch's chunks.
    auto store = [&](const View& to, int c, const float (&values)[ROWS][4]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bf16* out = at(to, chunk0 + c, image0 + got[half].image, n) + place[half] * (int)to.position + e;
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (inside >> (row * 2 + half) & 1)
                    *(unsigned*)(out + row * STRIDE * across * (int)to.position) = pack(values[row][half * 2], values[row][half * 2 + 1]);
        }
    };

    unsigned over[CHUNKS][ROWS][2];  // x with positions in rows
#pragma unroll
    for (int i = 0; i < CHUNKS * ROWS * 2; i++) over[i / 2 / ROWS][i / 2 % ROWS][i % 2] = transpose(x[i / 2 / ROWS][i / 2 % ROWS][i % 2]);
    // The lane's part of a matrix that has γ on its diagonal, out of the bytes of one γ.
    const int column = lane / 4;
    const bool mine = column / 2 == lane % 4;
    const unsigned highs = !mine ? 0x4444u : column % 2 ? 0x1044u : 0x4410u, lows = !mine ? 0x4444u : column % 2 ? 0x3244u : 0x4432u;

    // The gradient from reader l: du, where its ReLU passed x.
    auto add = [&](int l, const int c, const float (&du)[ROWS][4]) {
        const Affine f = affine[(l * CHUNKS + c) * 4 + lane % 4];
        const unsigned of_channel = gamma[(l * CHUNKS + c) * 8 + column];
        const unsigned high = bytes_of(of_channel, highs), low = bytes_of(of_channel, lows);
        float total[4] = {}, first[4] = {}, second[4] = {};  // Σ du of both halves; Σ x du of each, on a diagonal
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            unsigned masked[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                masked[half] = pack(du[row][half * 2], du[row][half * 2 + 1]) & above_zero(activated(f, x[c][row][half]));
                if (!full && !(inside >> (row * 2 + half) & 1)) masked[half] = 0;
            }
            multiply_add(sum[c][row], masked, high);  // G += γ du
            multiply_add(sum[c][row], masked, low);
            // Sums over positions are products too: rows 0–7 are the channels in one half, 8–15 in the other.
            const unsigned turned[2] = {transpose(masked[0]), transpose(masked[1])};
            multiply_add(total, turned, 0x3f803f80u);
            multiply_add(first, turned, over[c][row][0]);
            multiply_add(second, turned, over[c][row][1]);
        }
        // Lane (g, q) holds rows g and 8 + g, columns 2q and 2q + 1.
        const int g = lane / 4, q = lane % 4;
        float* kept = sums + (warp * all + l) * 2 * own + c * 8;
        if (g / 2 == q) {
            kept[g] = total[0] + total[2];
            kept[own + g] = g % 2 ? first[1] + second[3] : first[0] + second[2];
        }
    };

    // One product per position with a gradient in memory, two of its chunks at a time.
    auto straight = [&](const bf16* gradient, const View& made, int chunks, const unsigned* weights, int apart,
                        float (&du)[CHUNKS][ROWS][4]) {
        const int position = (int)made.position;
        const bf16* from[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            from[half] = gradient + (image0 + got[half].image) * made.image + e + ((row0 + got[half].row) * WIDTH + got[half].x) * position;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk += 2) {
            unsigned d[ROWS][4] = {};
#pragma unroll
            for (int row = 0; row < ROWS; row++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (inside >> (row * 2 + half) & 1) {
                        d[row][half] = __ldg((const unsigned*)(from[half] + row * WIDTH * position));
                        if (chunk + 1 < chunks)
                            d[row][2 + half] = __ldg((const unsigned*)(from[half] + row * WIDTH * position + made.chunk));
                    }
            from[0] += 2 * made.chunk;
            from[1] += 2 * made.chunk;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                if (chunk0 + c >= a.chunks) break;
                unsigned w0 = __ldg(weights + c * apart + chunk * 32), w1 = __ldg(weights + c * apart + chunk * 32 + 32);
#pragma unroll
                for (int row = 0; row < ROWS; row++) multiply_add(du[c][row], d[row], w0, w1);
            }
        }
    };

    if (a.trans.gradient && busy) {
        float du[CHUNKS][ROWS][4] = {};
        const int apart = (a.trans_chunks + 1) / 2 * 64;
        straight(a.trans.gradient + n * a.trans_made.capsule, a.trans_made, a.trans_chunks,
                 a.trans.weights + ((long long)n * a.trans.chunks + read_chunk) * apart + lane, apart, du);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) add(readers, c, du[c]);
    }

    copies_done();
    __syncthreads();
    if (a.fresh) {
        for (int i = threadIdx.x; i < GROWN * PER_BLOCK * LINES * WIDTH; i += blockDim.x) {
            const int x_ = i % WIDTH, y = y0 + i / WIDTH % LINES, image = i / WIDTH / LINES % PER_BLOCK, chunk = i / WIDTH / LINES / PER_BLOCK;
            if (y >= y1 || image >= images) continue;
            const int at_ = chunk * plane + ((image * HIGH + y) * WIDE + x_) * 16 - origin_of_tile;
            const float* f = fresh + chunk * 8;
            float g[8], value[8];
            unpack(*(const uint4*)(tiles + at_), g);
            unpack(*(const uint4*)(values + at_), value);
#pragma unroll
            for (int c = 0; c < 8; c++) g[c] = g[c] * f[c] + value[c] * f[fresh_size + c] + f[2 * fresh_size + c];
            const uint4 v = pack(g);
            *(uint4*)(tiles + at_) = v;
            if (blockIdx.z == 0 && (TILES == 1 || (y >= row0 && y < row0 + TILE_ROWS)))
                *(uint4*)(at(a.finished, chunk, image0 + image, n) + (y * WIDTH + x_) * 8) = v;
        }
        __syncthreads();
    }
    const int named = place_in_tile(locate(warp * 2 + (lane >> 3 & 1), lane & 7));
#pragma unroll 1
    for (int l0 = 0; l0 < readers; l0 += a.at_once) {
        const int now = min(a.at_once, readers - l0);
        if (l0) {
            __syncthreads();
            stage(l0, now);
            copies_done();
            __syncthreads();
        }
        if (busy)
#pragma unroll 1
            for (int which = 0; which < now; which++) {
                const int l = l0 + which;
                const Reader& reader = a.of.reader[l / repeats];
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    if (chunk0 + c >= a.chunks) break;
                    float du[ROWS][4];
#pragma unroll
                    for (int chunk = 0; chunk < GROWN; chunk++) {
                        const unsigned* weights =
                            reader.weights +
                            (((long long)(n + l % repeats) * reader.chunks + read_chunk + c) * GROWN + chunk) * taps * 32 + lane;
                        unsigned w[taps];
#pragma unroll
                        for (int tap = 0; tap < taps; tap++) w[tap] = __ldg(weights + tap * 32);
                        // Two taps side by side are one product of depth 16.
                        const char* origin = tiles + (which * GROWN + chunk) * plane + (named + (lane >> 4)) * 16;
#pragma unroll
                        for (int line = 0; line < ROWS + TAPS - 1; line++) {
                            unsigned two[4], one[2];
                            load_matrices<false>(two, origin + line * WIDE * 16);
                            if (TAPS == 3) load_matrices<false>(one, origin + (line * WIDE + 2) * 16);
#pragma unroll
                            for (int dy = 0; dy < TAPS; dy++) {
                                const int row = line - dy;
                                if (row < 0 || row >= ROWS) continue;
                                if (chunk == 0 && dy == 0)
                                    multiply(du[row], two, w[0], w[1]);
                                else
                                    multiply_add(du[row], two, w[dy * TAPS], w[dy * TAPS + 1]);
                                if (TAPS == 3) multiply_add(du[row], one, w[dy * TAPS + 2]);
                            }
                        }
                    }
                    add(l, c, du);
                }
            }
    }

#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (chunk0 + c < a.chunks) store(a.g, c, sum[c]);
    __syncthreads();
    for (int i = threadIdx.x; i < all * own; i += blockDim.x) {
        int l = i / own, channel = chunk0 * 8 + i % own;
        bool is_trans = l == readers;
        const Reader& reader = is_trans ? a.trans : a.of.reader[l / repeats];
        if (channel >= a.of.channels || !reader.gradient) continue;
        float dbeta = 0, dgamma = 0;
        for (int k = 0; k < (UNITS + 1) / 2; k++) {
            dbeta += sums[(k * all + l) * 2 * own + i % own];
            dgamma += sums[((k * all + l) * 2 + 1) * own + i % own];
        }
        int where = (is_trans ? n : n + l % repeats) * reader.channels + a.of.channel + channel;
        atomicAdd(reader.dbeta + where, dbeta);
        atomicAdd(reader.dgamma + where, (dgamma - stats[i % own] * dbeta) * stats[own + i % own]);  // Σ x̂ du
    }
}
