import unittest

from beds import count_dry, fits


class TestBeds(unittest.TestCase):
    def test_count_dry(self):
        self.assertEqual(count_dry([10, 19, 20, 40]), 2)

    def test_fits(self):
        self.assertEqual(fits(30), True)
        self.assertEqual(fits(31), False)
