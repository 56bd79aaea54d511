import unittest

from shop.basket import Basket
from shop.prices import format_price, percent_of


class Prices(unittest.TestCase):
    def test_percent_is_exact(self) -> None:
        self.assertEqual(percent_of(2900, 1), 29)
        self.assertEqual(percent_of(100, 29), 29)

    def test_percent_is_rounded_half_up(self) -> None:
        self.assertEqual(percent_of(199, 50), 100)
        self.assertEqual(percent_of(333, 10), 33)

    def test_format(self) -> None:
        self.assertEqual(format_price(1230), "12.30")


class Baskets(unittest.TestCase):
    def test_without_discount(self) -> None:
        basket = Basket()
        basket.add(250, 2)
        self.assertEqual(basket.total(), 500)

    def test_discount_is_rounded_once(self) -> None:
        basket = Basket()
        for _ in range(10):
            basket.add(99)
        self.assertEqual(basket.total(10), 891)
        self.assertEqual(basket.receipt(10), "to pay: 8.91")


if __name__ == "__main__":
    unittest.main()
