// The gradient of eight channels of a Dense Block, pulled from all layers that read them.
//
// All of them normalise a channel by the same statistics, x̂ = (x − μ)r, and differ in γ and β only. With
// du_l = the gradient behind layer l's ReLU and G = Σ_l γ_l du_l, the gradient of the channel is
//     r (G − mean(G) − x̂ mean(G x̂)),      Σ G = Σ_l γ_l dβ_l,   Σ G x̂ = Σ_l γ_l dγ_l.
// The means need all images, so this kernel leaves G, dβ and dγ behind, and who reads G next finishes it.
#include "tiles.cuh"

#define LAYERS 16

// One that reads the channels.
struct Reader {
    const bf16* gradient;  // of what it made of them
    const unsigned* weights;  // [n][chunk read][chunk made][tap][lane]
    const float* gamma;  // (n, channels)
    const float* beta;
    float* dgamma;
    float* dbeta;
    int channels;
    int chunks;  // it reads
};

// What Σ G and Σ G x̂ of some channels come from.
struct Means {
    Reader reader[LAYERS];
    int readers;
    Divisor repeats;  // capsules that read the same channels
    int channel;  // of the readers' numbering: the first one
    int channels;
    Statistics statistics;
    float count;
    float eps;
};

device_function void means(const Means& a, int n, int channel, float& mean, float& rstd, float& g, float& gx) {
    mean_and_rstd(a.statistics, n, channel, a.count, a.eps, mean, rstd);
    g = gx = 0;
    for (int l = 0; l < a.readers; l++)
        for (int more = 0; more < (int)a.repeats.value; more++) {
            int place = (n + more) * a.reader[l].channels + a.channel + channel;
            g += a.reader[l].gamma[place] * a.reader[l].dbeta[place];
            gx += a.reader[l].gamma[place] * a.reader[l].dgamma[place];
        }
    g /= a.count;
    gx /= a.count;
}

#ifdef PULL

struct Pull {
    Means of;  // the channels: their statistics and those who read them
    Reader trans;  // CapsTrans, which reads them too (gradient null: not here)
    View x;  // chunk z of these is pulled; of patches, where the readers have a stride
    View g;
    int stride;
    int height;
    int width;
    Divisor place_chunks;  // of one place of a patch
    Tile tile;
    int first_chunk;  // in the readers' numbering
    int low;
    View made;  // strides of the readers' gradients
    Divisor made_chunks;
    View trans_made;
    int trans_chunks;
    int fresh;  // 1: the first reader's gradient is still a G, to be finished by
    Means finish;
    View fresh_x;
    View finished;  // and kept here
    int at_once;  // readers whose gradients are in shared memory together
};

KERNEL(512) pull(ARGUMENTS(Pull) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y, z = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int repeats = a.of.repeats.value, made_chunks = a.made_chunks.value;
    const int readers = a.of.readers * repeats, all = readers + 1;
    const int wide = a.tile.wide.value, high = a.tile.high.value, positions = a.tile.positions.value;
    const int image0 = first_image(a.tile), row0 = first_row(a.tile);
    const int place_in_patch = divide(z, a.place_chunks), own_chunk = z - place_in_patch * (int)a.place_chunks.value;
    const int down = place_in_patch / a.stride, right = place_in_patch % a.stride;
    float* scale = (float*)memory;  // [reader][8], the last is CapsTrans
    float* shift = scale + all * 8;
    float* gamma = shift + all * 8;
    float* dbeta = gamma + all * 8;
    float* dgamma = dbeta + all * 8;
    float* stats = dgamma + all * 8;  // [mean, rstd][8]
    float* fresh = stats + 16;  // [mean, rstd, mean G, mean Gx̂][capsules][8·made_chunks]
    const int fresh_size = a.fresh ? repeats * made_chunks * 8 : 0;
    char* tiles = (char*)(fresh + (4 * fresh_size + 3) / 4 * 4);

    for (int i = threadIdx.x; i < all * 8; i += blockDim.x) {
        int l = i / 8, e = i % 8, channel = own_chunk * 8 + e;
        bool is_trans = l == readers;
        const Reader& reader = is_trans ? a.trans : a.of.reader[divide(l, a.of.repeats)];
        float mean = 0, rstd = 0, c = 0, b = 0;
        if (channel < a.of.channels) mean_and_rstd(a.of.statistics, n, channel, a.of.count, a.of.eps, mean, rstd);
        if (channel < a.of.channels && reader.gradient) {
            int place = (is_trans ? n : n + (l - divide(l, a.of.repeats) * repeats)) * reader.channels + a.of.channel + channel;
            c = reader.gamma[place];
            b = reader.beta[place] - mean * (c * rstd);
        }
        scale[i] = c * rstd;
        shift[i] = b;
        gamma[i] = c;
        dbeta[i] = dgamma[i] = 0;
        if (l == 0) {
            stats[e] = mean;
            stats[8 + e] = rstd;
        }
    }
    for (int i = threadIdx.x; i < fresh_size; i += blockDim.x) {
        int more = i / (made_chunks * 8), channel = i % (made_chunks * 8);
        float mean = 0, rstd = 0, g = 0, gx = 0;
        if (channel < a.finish.channels) means(a.finish, n + more, channel, mean, rstd, g, gx);
        fresh[i] = mean;
        fresh[fresh_size + i] = rstd;
        fresh[2 * fresh_size + i] = g;
        fresh[3 * fresh_size + i] = gx;
    }
    __syncthreads();

    // The lane's places: two positions in each of ROWS rows, two channels.
    const int e = lane % 4 * 2;
    Spot got[2] = {locate(a.tile, warp * 2, lane / 4, ROWS), locate(a.tile, warp * 2 + 1, lane / 4, ROWS)};
    unsigned x[ROWS][2];
    float sum[ROWS][4] = {};  // G
    bool inside[ROWS][2];
    auto place_of = [&](int row, int half) {
        int y = (row0 + got[half].row + row) * a.stride + down, xx = got[half].x * a.stride + right;
        return y * a.width + xx;
    };
#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            inside[row][half] = got[half].inside && image0 + got[half].image < a.tile.images &&
                                (row0 + got[half].row + row) * a.stride + down < a.height &&
                                got[half].x * a.stride + right < a.width;
            x[row][half] = inside[row][half] ? *(const unsigned*)(at(a.x, own_chunk, image0 + got[half].image, n) +
                                                                 place_of(row, half) * a.x.position + e)
                                             : 0;
        }

    // What reader l says: du = its gradient where its ReLU let x through.
    auto add = [&](int l, float (&du)[ROWS][4]) {
        float beta[2] = {}, gx[2] = {};
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float value = i ? high_half(x[row][half]) : low_half(x[row][half]);
                    float d = du[row][half * 2 + i];
                    d = inside[row][half] && value * scale[l * 8 + e + i] + shift[l * 8 + e + i] > 0 ? d : 0.f;
                    sum[row][half * 2 + i] += gamma[l * 8 + e + i] * d;
                    beta[i] += d;
                    gx[i] += d * (value - stats[e + i]) * stats[8 + e + i];
                }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2) {
                beta[i] += shuffle_xor(beta[i], distance);
                gx[i] += shuffle_xor(gx[i], distance);
            }
            if (lane < 4) {
                atomicAdd(dbeta + l * 8 + e + i, beta[i]);
                atomicAdd(dgamma + l * 8 + e + i, gx[i]);
            }
        }
    };

    if (a.trans.gradient) {
        float du[ROWS][4] = {};
        const unsigned* weights = a.trans.weights +
            ((long long)n * a.trans.chunks + a.first_chunk + z) * ((a.trans_chunks + 1) / 2 * 2) * 32 + lane;
        for (int chunk = 0; chunk < a.trans_chunks; chunk += 2) {
            unsigned w0 = __ldg(weights + chunk * 32), w1 = __ldg(weights + (chunk + 1) * 32);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                unsigned d[4] = {};
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (inside[row][half]) {
                        long long place = (image0 + got[half].image) * a.trans_made.image + n * a.trans_made.capsule + e +
                                          ((row0 + got[half].row + row) * a.tile.width + got[half].x) * a.trans_made.position;
                        const bf16* from = a.trans.gradient + place + chunk * a.trans_made.chunk;
                        d[half] = __ldg((const unsigned*)from);
                        if (chunk + 1 < a.trans_chunks) d[2 + half] = __ldg((const unsigned*)(from + a.trans_made.chunk));
                    }
                multiply_add(du[row], d, w0, w1);
            }
        }
        add(readers, du);
    }

    Spot named = locate(a.tile, warp * 2 + (lane >> 3 & 1), lane & 7, ROWS);
    const int place = place_in_tile(a.tile, named);
    for (int l0 = 0; l0 < readers; l0 += a.at_once) {
        const int now = min(a.at_once, readers - l0);
        __syncthreads();
        for (int i = threadIdx.x; i < positions * now * made_chunks; i += blockDim.x) {
            int which = divide(i, a.tile.positions), position = i - which * positions;
            int l = divide(which, a.made_chunks), chunk = which - l * made_chunks;
            l += l0;
            int layer = divide(l, a.of.repeats), more = (l - divide(l, a.of.repeats) * repeats);
            int line = divide(position, a.tile.wide), column = position - line * wide;
            int image = divide(line, a.tile.high);
            int y = row0 + a.low + line - image * high, xx = a.low + column, m = image0 + image;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (m < a.tile.images && y >= 0 && y < a.tile.height && xx >= 0 && xx < a.tile.width) {
                long long where = m * a.made.image + (n + more) * a.made.capsule + chunk * a.made.chunk +
                                  (y * a.tile.width + xx) * a.made.position;
                v = __ldg((const uint4*)(a.of.reader[layer].gradient + where));
                if (a.fresh && layer == 0) {
                    int p = y * a.tile.width + xx;
                    float g[8], value[8];
                    unpack(v, g);
                    unpack(__ldg((const uint4*)(at(a.fresh_x, chunk, m, n + more) + p * a.fresh_x.position)), value);
#pragma unroll
                    for (int c = 0; c < 8; c++) {
                        int k = (more * made_chunks + chunk) * 8 + c;
                        float rstd = fresh[fresh_size + k];
                        g[c] = rstd * (g[c] - fresh[2 * fresh_size + k] -
                                       (value[c] - fresh[k]) * rstd * fresh[3 * fresh_size + k]);
                    }
                    v = pack(g);
                    bool mine = line - image * high >= -a.low && line - image * high < a.tile.rows - a.low;
                    if (z == 0 && mine)
                        *(uint4*)(at(a.finished, chunk, m, n + more) + p * a.finished.position) = v;
                }
            }
            *(uint4*)(tiles + (which * positions + position) * 16) = v;
        }
        __syncthreads();
        for (int which = 0; which < now; which++) {
            const int l = l0 + which;
            const Reader& reader = a.of.reader[divide(l, a.of.repeats)];
            float du[ROWS][4] = {};
            for (int chunk = 0; chunk < made_chunks; chunk++) {
                const unsigned* weights = reader.weights +
                    (((long long)(n + (l - divide(l, a.of.repeats) * repeats)) * reader.chunks + a.first_chunk + z) * made_chunks + chunk) *
                        TAPS * TAPS * 32 + lane;
                unsigned w[TAPS * TAPS];
#pragma unroll
                for (int tap = 0; tap < TAPS * TAPS; tap++) w[tap] = __ldg(weights + tap * 32);
                // Two taps side by side are one product of depth 16.
                const char* origin = tiles + ((which * made_chunks + chunk) * positions + place) * 16;
#pragma unroll
                for (int line = 0; line < ROWS + TAPS - 1; line++) {
                    unsigned two[4], one[2];
                    load_matrices<false>(two, origin + (line * wide + (lane >> 4)) * 16);
                    if (TAPS == 3) load_matrices<false>(one, origin + (line * wide + 2) * 16);
#pragma unroll
                    for (int dy = 0; dy < TAPS; dy++) {
                        const int row = line - dy;
                        if (row < 0 || row >= ROWS) continue;
                        multiply_add(du[row], two, w[dy * TAPS], w[dy * TAPS + 1]);
                        if (TAPS == 3) multiply_add(du[row], one, w[dy * TAPS + 2]);
                    }
                }
            }
            add(l, du);
        }
    }

#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (inside[row][half])
                *(unsigned*)(at(a.g, own_chunk, image0 + got[half].image, n) + place_of(row, half) * a.g.position + e) =
                    pack(sum[row][half * 2], sum[row][half * 2 + 1]);
    __syncthreads();
    for (int i = threadIdx.x; i < all * 8; i += blockDim.x) {
        int l = i / 8, channel = own_chunk * 8 + i % 8;
        bool is_trans = l == readers;
        const Reader& reader = is_trans ? a.trans : a.of.reader[divide(l, a.of.repeats)];
        if (channel >= a.of.channels || !reader.gradient) continue;
        int where = (is_trans ? n : n + (l - divide(l, a.of.repeats) * repeats)) * reader.channels + a.of.channel + channel;
        atomicAdd(reader.dbeta + where, dbeta[i]);
        atomicAdd(reader.dgamma + where, dgamma[i]);
    }
}

#endif
