// Hardware primitives: bf16, tensor cores, sums over a warp. No CUDA header is included, so that
// NVRTC alone, which comes with PyTorch, compiles everything. (EMULATED: the same for a CPU, tests/emulator.)
#ifndef EMULATED

typedef unsigned short bf16;

#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED_MEMORY(name) extern __shared__ __align__(128) char name[]
#define ARGUMENTS(type) const __grid_constant__ type
#define device_function static __device__ __forceinline__

device_function float from_bits(unsigned bits) { return __uint_as_float(bits); }

// two floats → two bf16, the first in the lower half
device_function unsigned pack(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// the same for max(0, ·)
device_function unsigned pack_positive(float low, float high) {
    unsigned packed;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// a·x + b of two bf16, rounded once; the same and max(0, ·)
device_function unsigned fused(unsigned a, unsigned x, unsigned b) {
    unsigned y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(x), "r"(b));
    return y;
}
device_function unsigned fused_positive(unsigned a, unsigned x, unsigned b) {
    unsigned y;
    asm("fma.rn.relu.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(x), "r"(b));
    return y;
}

// all bits of each half whose bf16 is above zero
device_function unsigned above_zero(unsigned two) {
#if __CUDA_ARCH__ >= 900
    unsigned bits;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(bits) : "r"(two), "r"(0u));
    return bits;
#else
    const int low = (int)(two << 16), high = (int)(two & 0xffff0000u);
    return (low > 0 ? 0xffffu : 0u) | (high > 0 ? 0xffff0000u : 0u);
#endif
}

// bytes of a by their numbers, 4: zero
device_function unsigned bytes_of(unsigned a, unsigned numbers) { return __byte_perm(a, 0u, numbers); }

device_function float rsqrt_of(float x) { return rsqrtf(x); }

// Four 8×8 matrices; lanes 8i … 8i+7 address the rows of matrix i. `transposed`: rows become columns.
template <bool transposed>
device_function void load_matrices(unsigned (&r)[4], const void* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// Two of them, addressed by lanes 0 … 15.
template <bool transposed>
device_function void load_matrices(unsigned (&r)[2], const void* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}

// d (16×8) += a (16×16) · b (16×8)
device_function void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d (16×8) = a (16×16) · b (16×8)
device_function void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

// d (16×8) += a (16×8) · b (8×8)
device_function void multiply_add(float (&d)[4], const unsigned (&a)[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Copy 16 bytes into shared memory asynchronously, until `copies_done`. (.ca: with .cg, which bypasses the L1 cache, a
// sector of 32 bytes travels once for each of its halves.)
device_function void copy_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
device_function void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Close a group of copies; wait until all but the last given number of groups are done.
device_function void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int last>
device_function void copies_done_but() { asm volatile("cp.async.wait_group %0;" ::"n"(last) : "memory"); }

// an 8×8 matrix of bf16, one row per four lanes, transposed
device_function unsigned transpose(unsigned two) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
    return turned;
}

device_function float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
device_function float shuffle_from(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

#endif

device_function float low_half(unsigned two) { return from_bits(two << 16); }
device_function float high_half(unsigned two) { return from_bits(two & 0xffff0000u); }

// Eight channels, the unit everything is stored in: 16 bytes.
device_function void unpack(const uint4& v, float (&x)[8]) {
    const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = low_half(w[i]);
        x[2 * i + 1] = high_half(w[i]);
    }
}

device_function uint4 pack(const float (&x)[8]) {
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

// The location of eight channels of a tensor with capsules: chunk q of image m, capsule n, position p.
struct View {
    bf16* data;
    long long chunk;  // all in elements
    long long image;
    long long capsule;  // 0: the same for every capsule
    long long position;
};

device_function bf16* at(const View& v, int q, int m, int n) { return v.data + q * v.chunk + m * v.image + n * v.capsule; }

// Sums over images and positions, one for each channel.
struct Statistics {
    const float* sum;
    const float* square;
    int capsule;  // 0: the same for every capsule
};

device_function void mean_and_rstd(const Statistics& s, int n, int channel, float count, float eps, float& mean, float& rstd) {
    mean = s.sum[n * s.capsule + channel] / count;
    rstd = rsqrt_of(max(s.square[n * s.capsule + channel] / count - mean * mean, 0.f) + eps);
}

// Update of a batch norm's running statistics, with the unbiased variance.
device_function void remember(float* running_mean, float* running_var, float mean, float rstd, float count, float eps, float momentum) {
    const float var = max(1 / (rstd * rstd) - eps, 0.f) * (count / max(count - 1, 1.f));
    *running_mean += momentum * (mean - *running_mean);
    *running_var += momentum * (var - *running_var);
}

// relu(norm(x)) of two channels in bf16: the scale is rounded, and the shift, which makes up for it, comes in two parts,
// so that a mean far from zero costs no digits.
struct Affine {
    unsigned scale;
    unsigned high;
    unsigned low;
    unsigned unused;
};

// γ(x − μ)r + β of two channels
device_function Affine affine_of(const float (&gamma_r)[2], const float (&mean)[2], const float (&beta)[2]) {
    Affine f;
    f.scale = pack(gamma_r[0], gamma_r[1]);
    const float first = beta[0] - mean[0] * low_half(f.scale), second = beta[1] - mean[1] * high_half(f.scale);
    f.high = pack(first, second);
    f.low = pack(first - low_half(f.high), second - high_half(f.high));
    f.unused = 0;
    return f;
}

device_function unsigned activated(const Affine& f, unsigned x) {
    return fused_positive(0x3f803f80u, fused(f.scale, x, f.high), f.low);
}

// One of the two channels, twice.
device_function Affine one_of(const Affine& f, int which) {
    auto twice = [&](unsigned two) { return which ? (two & 0xffff0000u) | two >> 16 : two << 16 | (two & 0xffffu); };
    return {twice(f.scale), twice(f.high), twice(f.low), 0};
}

// 32 random bits for a position, reproducible.
device_function unsigned hashed(long long seed, unsigned salt, unsigned place) {
    unsigned x = place * 0x9e3779b9u ^ (unsigned)seed, y = salt * 0x85ebca6bu ^ (unsigned)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 3; round++) {
        x ^= y;
        x ^= x >> 16;
        x *= 0x7feb352du;
        x ^= x >> 15;
        x *= 0x846ca68bu;
        x ^= x >> 16;
        y = y * 0xc2b2ae35u + x;
    }
    return x;
}

device_function float over_warp(float x) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) x += shuffle_xor(x, distance);
    return x;
}

// The sum over the block, for every thread; `kept` holds a float for each warp and may be used again after a barrier.
device_function float over_block(float x, float* kept) {
    x = over_warp(x);
    if (threadIdx.x % 32 == 0) kept[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) x += kept[i];
    __syncthreads();
    return x;
}

// The same for the maximum.
device_function float largest_of_block(float x, float* kept) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) x = max(x, shuffle_xor(x, distance));
    if (threadIdx.x % 32 == 0) kept[threadIdx.x / 32] = x;
    __syncthreads();
    x = kept[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) x = max(x, kept[i]);
    __syncthreads();
    return x;
}

device_function float sigmoid(float x) { return 1 / (1 + __expf(-x)); }

// Eq. 7 for a fitness that noise may have pushed below zero (normalized_weights in routing.py).
device_function float at_least_none(float noisy) { return max(noisy, 0.f) + 1e-6f; }

device_function float uniform(unsigned random) { return (random >> 8) * (1.f / 16777216); }

// Box–Muller
device_function float normal(unsigned first, unsigned second) {
    return sqrtf(-2 * __logf(((first >> 8) + 1) * (1.f / 16777216))) * cosf(uniform(second) * 6.2831853f);
}

// Σ and Σ² of channels, where the first `active` threads hold eight each of chunk thread % chunks; `kept` has room for
// sixteen floats per thread.
device_function void add_by_chunk(const float (&sum)[8], const float (&square)[8], int active, int chunks, float* kept, float* to_sum,
                                  float* to_square) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
        kept[threadIdx.x * 16 + e] = sum[e];
        kept[threadIdx.x * 16 + 8 + e] = square[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < chunks * 16; i += blockDim.x) {
        const int chunk = i / 16, e = i % 16;
        float total = 0;
        for (int t = chunk; t < active; t += chunks) total += kept[t * 16 + e];
        atomicAdd((e < 8 ? to_sum : to_square) + chunk * 8 + e % 8, total);
    }
}
