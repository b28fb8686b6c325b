// SPDX-License-Identifier: Apache-2.0
//
// Does nothing: what the tests include is precompiled with it, see ../CMakeLists.txt.
int main() {}
