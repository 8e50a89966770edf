// How a block of threads covers maps, and how a tile of input is loaded into shared memory: activated, with its border.
//
// Given at compile time, so that addresses in shared memory are constants: HEIGHT and WIDTH of the maps, TAPS, TILE_ROWS
// (of a tile, a multiple of ROWS; a higher map takes several), PER_BLOCK images in a block. SHIFT: taps of one row are
// brought together by shifting, so a tile has whole strips and no border to the left and right (maps up to 16 wide).
//
// A warp works on two units at a time: the rows 0–7 and 8–15 of a tensor core's product. A unit is a strip of eight
// positions of one row (of several images side by side, where a map is narrower than that), ROWS rows high.
#include "primitives.cuh"

constexpr int STRIP_LOG = WIDTH > 4 ? 3 : WIDTH > 2 ? 2 : WIDTH > 1 ? 1 : 0;  // positions of one image in a strip
constexpr int STRIPS = STRIP_LOG == 3 ? (WIDTH + 7) / 8 : 1;  // in a row
constexpr int GROUPS = TILE_ROWS / ROWS;
constexpr int TILES = (HEIGHT + TILE_ROWS - 1) / TILE_ROWS;  // tiles per map
constexpr int UNITS = (PER_BLOCK >> (3 - STRIP_LOG)) * STRIPS * GROUPS;
constexpr int HIGH = TILE_ROWS + TAPS - 1, WIDE = SHIFT ? STRIPS << STRIP_LOG : WIDTH + TAPS - 1;  // with the border
constexpr int POSITIONS = PER_BLOCK * HIGH * WIDE;
constexpr int LINES = HIGH < HEIGHT ? HIGH : HEIGHT;  // of the map, at most, that a tile has
#ifndef A_LANE
constexpr int A_LANE = PER_BLOCK * LINES * WIDTH > 128 ? 8 : 4;  // positions that a lane loads at once
#endif
constexpr int PARTS = (PER_BLOCK * LINES * WIDTH + 32 * A_LANE - 1) / (32 * A_LANE);  // parts in which a plane is loaded

struct Spot {
    int image;  // within the block
    int x;
    int row;  // first row of the unit, within the tile
    bool inside;  // not padding
};

device_function Spot locate(int unit, int place) {
    Spot s;
    s.inside = unit < UNITS;
    unit = s.inside ? unit : 0;
    s.x = (unit % STRIPS << 3) + (place & ((1 << STRIP_LOG) - 1));  // the two units of a warp stand side by side, if any do
    s.row = unit / STRIPS % GROUPS * ROWS;
    s.image = (unit / STRIPS / GROUPS << (3 - STRIP_LOG)) + (place >> STRIP_LOG);
    s.inside = s.inside && s.x < WIDTH;
    return s;
}

// The spot's position in a tile with its border; padding refers to a neighbour, to be ignored.
device_function int place_in_tile(const Spot& s) {
    return (s.image * HIGH + s.row) * WIDE + (SHIFT ? s.x : min(s.x, WIDTH - 1));
}

// Sums for the three taps of a row, each at its own place: y[x] = left tap of x-1 + middle tap of x + right tap of x+1.
device_function void bring_together(const float (&left)[4], float (&middle)[4], const float (&right)[4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, before = (lane - 4) & 31, after = (lane + 4) & 31;
    const int x = g & ((1 << STRIP_LOG) - 1);
    const bool begins = x == 0, ends = STRIPS == 1 && x == WIDTH - 1;  // nothing comes from outside the map
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float l0 = shuffle_from(left[i], before), l1 = shuffle_from(left[2 + i], before);
        const float r0 = shuffle_from(right[i], after), r1 = shuffle_from(right[2 + i], after);
        if (STRIPS == 2) {  // the second unit continues where the first ends
            middle[i] += (g > 0 ? l0 : 0.f) + (g < 7 ? r0 : r1);
            middle[2 + i] += (g > 0 ? l1 : l0) + (g < 7 && g + 8 < WIDTH - 1 ? r1 : 0.f);
        } else {
            middle[i] += (begins ? 0.f : l0) + (ends ? 0.f : r0);
            middle[2 + i] += (begins ? 0.f : l1) + (ends ? 0.f : r1);
        }
    }
}

device_function void clear(char* memory, int bytes) {
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) *(uint4*)(memory + i) = make_uint4(0, 0, 0, 0);
}

// One part of a plane: eight channels of the block's images, A_LANE positions per lane, from row y0 of the map to
// row y1. `from` and `to` point to position (0, 0) of the first image, inside or not; `change` is applied on the way.
template <int TO_IMAGE, int TO_ROW, int TO_COLUMN, class Change>
device_function void load_part(int part, int images, int y0, int y1, int columns, const bf16* from, long long from_image,
                               int from_row, int from_column, char* to, Change change) {
    const int first = part * 32 * A_LANE + threadIdx.x % 32;
    uint4 v[A_LANE];
    bool there[A_LANE];
#pragma unroll
    for (int k = 0; k < A_LANE; k++) {
        int i = first + k * 32, image = PER_BLOCK > 1 ? i / (LINES * WIDTH) : 0, x = i % WIDTH;
        int y = y0 + (PER_BLOCK > 1 ? i / WIDTH % LINES : i / WIDTH);
        there[k] = (PER_BLOCK == 1 || image < images) && y < y1 && x < columns;
        if (there[k])
            v[k] = __ldg((const uint4*)(from + (PER_BLOCK > 1 ? image * from_image : 0) + y * from_row + x * from_column));
    }
#pragma unroll
    for (int k = 0; k < A_LANE; k++) {
        int i = first + k * 32, image = PER_BLOCK > 1 ? i / (LINES * WIDTH) : 0, x = i % WIDTH;
        int y = y0 + (PER_BLOCK > 1 ? i / WIDTH % LINES : i / WIDTH);
        if (!there[k]) continue;
        change(v[k], image, y, x);
        *(uint4*)(to + image * TO_IMAGE + y * TO_ROW + x * TO_COLUMN) = v[k];
    }
}

// The same without a change, asynchronously until `copies_done`.
template <int TO_IMAGE, int TO_ROW, int TO_COLUMN>
device_function void copy_part(int part, int images, int y0, int y1, int columns, const bf16* from, long long from_image,
                               int from_row, int from_column, char* to) {
#pragma unroll
    for (int k = 0; k < A_LANE; k++) {
        int i = part * 32 * A_LANE + threadIdx.x % 32 + k * 32, image = PER_BLOCK > 1 ? i / (LINES * WIDTH) : 0, x = i % WIDTH;
        int y = y0 + (PER_BLOCK > 1 ? i / WIDTH % LINES : i / WIDTH);
        if ((PER_BLOCK == 1 || image < images) && y < y1 && x < columns)
            copy_async(to + image * TO_IMAGE + y * TO_ROW + x * TO_COLUMN,
                       from + (PER_BLOCK > 1 ? image * from_image : 0) + y * from_row + x * from_column);
    }
}
